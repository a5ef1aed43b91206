"""Convert local tokenizer files to ``tokenizer.json`` and ``tokenizer_config.json``, without a download.

The data preparation, the training and the converted model all use these two files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megatron_core_trainer.data.byte_tokenizer import END_OF_TEXT, write_tokenizer
from megatron_core_trainer.data.corpus import CorpusError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Names of GPT-2's files: those that transformers downloads, and those in Megatron-LM's documentation.
_GPT2_FILES = (
    ("vocab.json", "merges.txt"),
    ("gpt2-vocab.json", "gpt2-merges.txt"),
    ("encoder.json", "vocab.bpe"),
)


def import_tokenizer(source: Path, directory: Path) -> None:
    """Convert the tokenizer at a path.

    :param source: a directory with ``tokenizer.json`` and ``tokenizer_config.json`` (Hugging Face), a directory with
        GPT-2's ``vocab.json`` and ``merges.txt``, or a SentencePiece ``.model`` file.
    :param directory: output folder; created if it does not exist.
    :raises CorpusError: if the path has none of these, or the files are invalid.
    """
    if source.is_file() and source.suffix == ".model":
        _from_sentencepiece(source, directory)
        return
    if (source / "tokenizer.json").is_file() and (source / "tokenizer_config.json").is_file():
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (directory / name).write_bytes((source / name).read_bytes())
        return
    for vocabulary, merges in _GPT2_FILES:
        if (source / vocabulary).is_file() and (source / merges).is_file():
            _from_gpt2(source / vocabulary, source / merges, directory)
            return
    raise CorpusError(
        "--tokenizer must be byte, bpe, a directory with tokenizer.json and tokenizer_config.json, a directory with"
        f" GPT-2's vocab.json and merges.txt, or a SentencePiece .model file; {source} is not"
    )


def check_sentencepiece(model: Path, directory: Path, texts: Iterable[str]) -> None:
    """Refuse a converted SentencePiece tokenizer that encodes texts differently from the original.

    :param model: the ``.model`` file.
    :param directory: folder of the converted tokenizer.
    :param texts: texts to encode with both.
    :raises CorpusError: with the first difference.
    """
    import sentencepiece
    from tokenizers import Tokenizer

    original = sentencepiece.SentencePieceProcessor(model_file=str(model))
    imported = Tokenizer.from_file(str(directory / "tokenizer.json"))
    imported.encode_special_tokens = True  # text that looks like a control piece is ordinary text
    for text in texts:
        wanted, found = original.encode(text), imported.encode(text, add_special_tokens=False).ids
        if wanted != found:
            at = next((i for i, pair in enumerate(zip(wanted, found, strict=False)) if pair[0] != pair[1]), 0)
            raise CorpusError(
                f"{model} cannot be expressed as tokenizer.json: {text[:40]!r}… differs at token {at}; give a Hugging"
                " Face tokenizer's directory in its place"
            )


def _from_gpt2(vocabulary: Path, merges: Path, directory: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    try:
        tokenizer = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:
        raise CorpusError(f"{vocabulary} and {merges} are not GPT-2's files: {error}") from error
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        raise CorpusError(f"{vocabulary} has no {END_OF_TEXT}, which ends a document")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    write_tokenizer(directory, tokenizer.to_str(), END_OF_TEXT)


def _from_sentencepiece(model: Path, directory: Path) -> None:
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(model.read_bytes())
    except Exception as error:
        raise CorpusError(f"{model} is not a SentencePiece model: {error}") from error
    if proto.trainer_spec.eos_id < 0:
        raise CorpusError(f"{model} has no end-of-sentence piece, which ends a document")
    tokenizer = _sentencepiece_tokenizer(proto)
    write_tokenizer(directory, tokenizer.to_str(), proto.pieces[proto.trainer_spec.eos_id].piece)


def _sentencepiece_tokenizer(proto: Any) -> Any:
    """Build an equivalent tokenizer: pieces, normalizer (character map, blanks) and decoder."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    spec, rules = proto.trainer_spec, proto.normalizer_spec
    unigram, bpe = 1, 2
    unknown, control, user_defined, unused = 2, 3, 4, 5
    if spec.model_type == unigram:
        # Text never becomes a control, unknown or unused piece, so these get a score below all others.
        pieces = [
            (piece.piece, -1e6 if piece.type in (control, unknown, unused) else piece.score)
            for piece in proto.pieces
        ]
        tokenizer = Tokenizer(models.Unigram(pieces, unk_id=spec.unk_id, byte_fallback=spec.byte_fallback))
    elif spec.model_type == bpe:
        ids = {piece.piece: number for number, piece in enumerate(proto.pieces)}
        tokenizer = Tokenizer(
            models.BPE(
                ids,
                _merges(proto, ids),
                unk_token=spec.unk_piece,
                fuse_unk=True,
                byte_fallback=spec.byte_fallback,
            )
        )
    else:
        raise CorpusError("only unigram and bpe models of SentencePiece can be used")
    steps: list[Any] = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if rules.add_dummy_prefix:
        steps.append(normalizers.Prepend("▁"))
    steps.append(normalizers.Replace(" ", "▁"))
    tokenizer.normalizer = normalizers.Sequence(steps)
    if spec.model_type == unigram:
        tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    for kind, special in ((control, True), (user_defined, False)):
        tokens = [
            AddedToken(piece.piece, special=special, normalized=False)
            for piece in proto.pieces
            if piece.type == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(tokens)
    return tokenizer


def _merges(proto: Any, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return the merges of a BPE model, best first; the model stores only their results."""
    merges = []
    for number, piece in enumerate(proto.pieces):
        normal = 1
        if piece.type != normal:
            continue
        halves = [(piece.piece[:at], piece.piece[at:]) for at in range(1, len(piece.piece))]
        found = [(left, right) for left, right in halves if left in ids and right in ids]
        found.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(-piece.score, number, pair) for pair in found]
    return [pair for _, _, pair in sorted(merges, key=lambda merge: merge[:2])]
