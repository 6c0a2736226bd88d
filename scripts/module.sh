#!/usr/bin/env bash
# module.sh PATH gives the module another path everywhere, as in module.sh example.org/owner/vkattn:
# in go.mod, in imports, and where docs, scripts and messages name a package.
set -euo pipefail

usage() { sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2; }

[ $# = 1 ] || usage
path=$1
# The last element is the name of the packages' folder; the first has a dot, or nobody could fetch it.
[[ $path =~ ^[a-z0-9-]+(\.[a-z0-9-]+)+(/[A-Za-z0-9._~-]+)+$ ]] || usage

cd "$(dirname "${BASH_SOURCE[0]}")/.."
old=$(awk '$1 == "module" { print $2 }' go.mod)
[ "$old" != "$path" ] || exit 0

packages='attention|bindings|cudapath|vk|shaders|internal|tests|docs|cmd/vkattn'
git ls-files -z -- '*.go' '*.md' '*.sh' '*.txt' '*.py' Makefile ':!docs/results' ':!docs/log' |
	OLD=$old NEW=$path PACKAGES=$packages xargs -0 perl -pi -e '
		s{(?<![\w./-])\Q$ENV{OLD}\E/(?=(?:$ENV{PACKAGES})(?![\w-]))}{$ENV{NEW}/}g;
		s{(?<=-require=)\Q$ENV{OLD}\E(?=@)|(?<=-replace=)\Q$ENV{OLD}\E(?==)}{$ENV{NEW}}g'
go mod edit -module "$path"
git ls-files -z -- '*.go' | xargs -0 gofmt -w
