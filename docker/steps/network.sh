# Sourced by the steps that install: where wheels come from, and with which certificates. Leaves nothing behind.

# No configuration of pip or uv that a base may hold has a say.
export PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1
export UV_NO_CONFIG=1 UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy UV_CACHE_DIR=/run/uv-cache UV_HTTP_TIMEOUT=180
# One after the other: where two wheels bring the same file, one wins, not a mixture (stack.sh sees to it that it is the same in every build).
export UV_CONCURRENT_INSTALLS=1
# Bytecode without the source's time in it, checked against the source's content: two builds give the same bytes.
export PYC_INVALIDATION_MODE=CHECKED_HASH SOURCE_DATE_EPOCH=0 PYTHONHASHSEED=0
if [ -s /run/secrets/ca ]; then
    export SSL_CERT_FILE=/run/secrets/ca PIP_CERT=/run/secrets/ca
fi
if [ -s /run/secrets/index ]; then
    UV_DEFAULT_INDEX=$(cat /run/secrets/index)
    export UV_DEFAULT_INDEX PIP_INDEX_URL="$UV_DEFAULT_INDEX"
fi
# A wheelhouse replaces the index.
if [ -n "$(find /run/wheels -name '*.whl' | head -n 1)" ]; then
    export UV_OFFLINE=1 UV_NO_INDEX=1 UV_FIND_LINKS=/run/wheels PIP_NO_INDEX=1 PIP_FIND_LINKS=/run/wheels
fi
