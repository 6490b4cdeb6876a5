# The stack's environment in /opt/env, from its lock alone.
set -eu
umask 022
. /run/steps/network.sh

python=
for version in $PYTHON; do
    for each in "python$version" python3; do
        if command -v "$each" >/dev/null && [ "$("$each" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = "$version" ]; then
            python=$(command -v "$each")
            break 2
        fi
    done
done
if [ -z "$python" ]; then
    echo "envspec-build: the base has $(python3 --version), the lock is for Python $PYTHON; take another base or name its Python in stack.yaml" >&2
    exit 1
fi
# uv installs what it fetched, in the order of arrival, before what its cache held, and of two wheels with the same file the later one wins.
# So everything is fetched first, into links that are thrown away: then all of it comes from the cache, in one order.
fetched=$(mktemp -d)
/run/uv/uv venv --quiet --python "$python" "$fetched"
UV_LINK_MODE=symlink /run/uv/uv pip sync --python "$fetched/bin/python" --require-hashes --only-binary :all: /run/stack/requirements.lock
rm -r "$fetched"
/run/uv/uv venv --quiet --python "$python" /opt/env
/run/uv/uv pip sync --quiet --python /opt/env/bin/python --require-hashes --only-binary :all: --compile-bytecode /run/stack/requirements.lock

# Of a wheel from a folder uv notes when the file was last changed, which says nothing of the environment.
for note in /opt/env/lib/python3*/site-packages/*.dist-info/uv_cache.json; do
    [ -e "$note" ] || continue
    rm "$note"
    sed -i '\#\.dist-info/uv_cache\.json,#d' "${note%/*}/RECORD"
done
