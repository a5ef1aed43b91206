#!/bin/sh
# Put a pinned release of upstream Megatron-LM into a directory: checkout.sh RELEASE DIR
# RELEASE is a tag in releases.yaml. MEGATRON_LM_REPOSITORY is another repository to clone from, such as a mirror for a
# cluster without internet access. DIR is created only after the commit has been verified.
set -eu

if [ $# -ne 2 ]; then
    echo "usage: checkout.sh RELEASE DIR" >&2
    exit 2
fi
release=$1
directory=$2
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
pins=$here/releases.yaml

commit=$(awk -v tag="$release:" '$1 == tag { print $2 }' "$pins")
if [ -z "$commit" ]; then
    known=$(awk '/^  core_/ { sub(":", "", $1); printf " %s", $1 }' "$pins")
    echo "checkout.sh: no release $release in releases.yaml; it has:$known" >&2
    exit 2
fi
repository=${MEGATRON_LM_REPOSITORY:-$(awk '$1 == "repository:" { print $2 }' "$pins")}

if [ -e "$directory" ]; then
    found=$(git -C "$directory" rev-parse --verify --quiet HEAD 2>/dev/null || true)
    if [ "$found" = "$commit" ]; then
        echo "$directory is at $release already"
        exit 0
    fi
    echo "checkout.sh: $directory exists and is not $release ($commit); name another directory, or remove it" >&2
    exit 1
fi

mkdir -p "$(dirname -- "$directory")"
temporary=$(mktemp -d "$directory.XXXXXX")
trap 'rm -rf "$temporary"' EXIT
trap 'exit 1' HUP INT TERM
echo "cloning $release"
git -c advice.detachedHead=false clone --quiet --depth 1 --branch "$release" "$repository" "$temporary/clone"
found=$(git -C "$temporary/clone" rev-parse HEAD)
if [ "$found" != "$commit" ]; then
    echo "checkout.sh: $release of $repository is $found, but releases.yaml pins $commit: the tag has moved" >&2
    exit 1
fi
chmod 755 "$temporary/clone"
mv "$temporary/clone" "$directory"
echo "$directory is at $release ($commit)"
