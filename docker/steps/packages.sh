# What the base lacks of $PACKAGES (Debian or Ubuntu), and the account that images run as.
set -eu
umask 022

missing=
for package in $PACKAGES; do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" != installed ]; then
        missing="$missing $package"
    fi
done
if [ -n "$missing" ]; then
    if [ -n "$OFFLINE" ]; then
        echo "envspec-build: the base lacks$missing, which an offline build cannot fetch; take a base that has them, such as one of 'nox -s bootstrap-base'" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    authority=Acquire::Retries=3
    [ ! -s /run/secrets/ca ] || authority=Acquire::https::CAInfo=/run/secrets/ca
    apt-get -q -o "$authority" update
    # shellcheck disable=SC2086 # words are packages
    apt-get -q -y -o "$authority" install --no-install-recommends $missing
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache /var/log/apt /var/log/dpkg.log /var/log/alternatives.log
fi

# Ubuntu's images come with an account of this number.
if taken=$(getent passwd 1000); then
    userdel --remove "${taken%%:*}" 2>/dev/null || true
fi
SOURCE_DATE_EPOCH=0 useradd --uid 1000 --user-group --create-home --shell /bin/sh app
rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid- /etc/subgid-
mkdir -p /workspace
chown app:app /workspace
