#!/usr/bin/env bash
# release.sh build|test|licences PACKAGE
#
#   build  packs the command for each platform into build/release, with SHA256SUMS
#   test   builds the release twice and compares the bytes: the second time in another folder, with an empty build
#          cache, another umask and another time zone
#   licences  prints the licences of Go and of the modules that a package is linked with
#
# The command for linux/amd64 is built with cgo, by the machine's gcc, for the kernels of tier cpu in C; the others without.
#
# A release is a commit: a tree with changes is refused. Without a tag of its version the names have the commit. The
# same commit and the tools that build.txt names give the same bytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=$PWD/build/release
targets=(linux/amd64 linux/arm64 windows/amd64 windows/arm64 darwin/amd64 darwin/arm64)

die() {
	echo "release: $*" >&2
	exit 1
}

clean() {
	[[ -z $(git status --porcelain) ]] || die 'the tree has changes; commit them first'
}

# The licence of Go and of each module that a package is linked with.
licences() { # <package>
	local module dir files
	printf '== Go\n\n'
	cat "$(go env GOROOT)/LICENSE"
	go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' "$1" | sort -u |
		while read -r module version dir; do
			files=("$dir"/{LICENSE,COPYING,NOTICE,PATENTS}* "$dir"/licenses/*)
			((${#files[@]})) || die "no licence in $module"
			printf '\n== %s %s\n\n' "$module" "$version"
			cat "${files[@]}"
		done
}

readme() { # <target> <file of the command>
	printf 'vkattn %s, %s, %s\n\n' "$version" "$1" "$(go version | cut -d ' ' -f 3)"
	case $1 in
	linux/*)
		printf '%s\n' 'It computes on GPUs through Vulkan and CUDA, and on the CPU. It opens libvulkan.so.1 and'
		if [[ $1 == linux/amd64 ]]; then
			printf '%s\n' "libcuda.so.1 when it runs, and needs glibc ${glibc#GLIBC_} or newer."
		else
			printf '%s\n' 'libcuda.so.1 when it runs, and needs glibc.'
		fi
		;;
	windows/*)
		printf '%s\n' 'It computes on GPUs through Vulkan and CUDA, and on the CPU. It opens vulkan-1.dll and nvcuda.dll,' \
			'which come with the drivers of GPUs, when it runs. Vulkan and CUDA share no memory on Windows.'
		;;
	*) printf '%s\n' 'It computes on GPUs through Vulkan, and on the CPU. It opens libvulkan.1.dylib when it runs.' ;;
	esac
	cat <<-TEXT

		$2 info         the devices that it sees
		$2 bench        benchmark; $2 help lists the other commands
		man/                manual pages, read by man -l man/vkattn.1
		completion/         completion scripts of shells; $2 completion --help says how to load them
		LICENSE             licence of vkattn
		LICENSES.txt        licences of Go and of the modules in the command
	TEXT
}

build() {
	clean
	[[ $(go env GOHOSTOS)/$(go env GOHOSTARCH) == linux/amd64 ]] || die 'takes gcc on linux/amd64'
	local tool
	for tool in gcc objdump zip; do
		command -v "$tool" >/dev/null || die "needs $tool"
	done

	umask 022
	shopt -s nullglob
	export LC_ALL=C TZ=UTC GOAMD64=v1 GOARM64=v8.0 GOFLAGS=-mod=readonly
	export CGO_CFLAGS='-O2 -g' CGO_LDFLAGS='-O2 -g'
	unset CGO_CPPFLAGS GOEXPERIMENT
	SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) # cobra dates the manual pages by it
	export SOURCE_DATE_EPOCH
	local tags stage
	tags=$(git tag --points-at HEAD)
	stage=$(mktemp -d)
	# shellcheck disable=SC2064 # the folder of now
	trap "rm -rf '$stage'" EXIT
	rm -rf "$out"
	mkdir -p "$out"
	# Built in a clone: go build records no commit in a worktree of git, and records the newest tag before the commit.
	git clone -q --shared --no-tags . "$stage/src"
	git -C "$stage/src" checkout -q --detach "$(git rev-parse HEAD)"
	cd "$stage/src"

	local target name dir shell command version='' glibc='' files=$stage/files
	mkdir "$files"
	for target in "${targets[@]}"; do
		printf '== %s [%d s]\n' "$target" "$SECONDS"
		IFS=/ read -r GOOS GOARCH <<<"$target"
		export GOOS GOARCH CGO_ENABLED=0 CC=gcc
		[[ $target != linux/amd64 ]] || CGO_ENABLED=1
		go build -trimpath -buildvcs=true -ldflags '-s -w' -o "$stage/bin/" ./cmd/vkattn
		command=("$stage"/bin/*)
		# The first target runs here. It names the version and writes the manual pages and completion scripts of all.
		if [[ ! $version ]]; then
			read -r _ version _ < <("${command[0]}" version)
			! grep -qxF "${version%+*}" <<<"$tags" || version=${version%+*}
			glibc=$(objdump -T "${command[0]}" | grep -o 'GLIBC_2[0-9.]*' | sort -uV | tail -n 1)
			"${command[0]}" man "$files/man"
			mkdir "$files/completion"
			for shell in bash zsh fish powershell; do "${command[0]}" completion "$shell" >"$files/completion/vkattn.$shell"; done
			cp LICENSE "$files/"
		fi
		name=vkattn-$version-$GOOS-$GOARCH
		dir=$stage/$name
		cp -r "$files" "$dir"
		mv "${command[0]}" "$dir/"
		readme "$target" "$(basename "${command[0]}")" >"$dir/README.txt"
		licences ./cmd/vkattn >"$dir/LICENSES.txt"
		find "$dir" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
		if [[ $GOOS == windows ]]; then
			(cd "$stage" && find "$name" -type f | sort | zip -X -q -9 -@ "$out/$name.zip")
		else
			tar -C "$stage" --format=ustar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
				-c "$name" | gzip -n -9 >"$out/$name.tar.gz"
		fi
	done
	unset GOOS GOARCH
	{
		git log -1 --format='commit %H'
		go version
		for tool in gcc ld ldd tar gzip; do "$tool" --version | sed -n 1p; done # head would not read all, and end a slow tool
		zip -v | sed -n 2p
	} >"$out/build.txt"
	(cd "$out" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
}

check() {
	clean
	local other
	other=$(mktemp -d)
	# shellcheck disable=SC2064 # the folder of now
	trap "rm -rf '$other'" EXIT
	git clone -q . "$other/clone"
	git -C "$other/clone" checkout -q --detach "$(git rev-parse HEAD)"
	scripts/release.sh build
	(
		umask 077
		TZ=Asia/Kolkata GOCACHE=$other/cache "$other/clone/scripts/release.sh" build
	)
	diff -r "$out" "$other/clone/build/release"
	echo 'release: two builds have the same bytes'
}

case ${1-} in
build) build ;;
test) check ;;
licences)
	shopt -s nullglob
	licences "$2"
	;;
*)
	sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
	exit 2
	;;
esac
