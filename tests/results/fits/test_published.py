"""The published laws give the values in their papers."""

from __future__ import annotations

import pytest

from airflow_megatron.results.fits.published import PUBLISHED

LAWS = {law.name: law for law in PUBLISHED}


def test_deepseek_gives_the_settings_of_its_own_models() -> None:
    """Table 2 of arXiv:2401.02954: 7B at 2 T tokens was trained with 4.2e-4 and 2,304 sequences of 4,096 tokens."""
    law = LAWS["DeepSeek"]
    assert law.lr is not None
    assert law.batch is not None
    size = 4.23e10 / 6  # its C is 4.23e10 operations a token
    assert law.lr(size, 2e12) == pytest.approx(4.2e-4, rel=0.03)
    assert law.batch(size, 2e12) == pytest.approx(2304 * 4096, rel=0.03)


def test_chinchilla_gives_its_own_loss_and_exponent() -> None:
    loss, again = LAWS["Chinchilla"].loss, LAWS["Chinchilla, fitted again"]
    assert loss is not None
    assert loss(70e9, 1.4e12) == pytest.approx(1.69 + 0.083 + 0.163, abs=0.003)
    assert again.model_exponent == pytest.approx(0.513, abs=0.001)


def test_every_law_has_a_source_and_predicts_values() -> None:
    for law in PUBLISHED:
        assert "arXiv:" in law.source
        assert law.counts in ("unpadded", "non-embedding")
        assert law.lr or law.batch or law.loss or law.model_exponent
        for formula in (law.lr, law.batch, law.loss):
            assert formula is None or formula(1e9, 2e10) > 0
