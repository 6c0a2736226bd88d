# shellcheck shell=bash
# shellcheck disable=SC2154 # deps.sh assigns what is read here
# Part of deps.sh: unpacks packages of a Debian archive into a tree outside of the system.
# Reads $deps and $arch, and packages, closure, areas, keep, drop and probe of the recipe.

keyring=/usr/share/keyrings/debian-archive-keyring.gpg

is_debian() {
	[[ -r /etc/os-release ]] || return 1
	# shellcheck disable=SC1091 # the system's own file
	(. /etc/os-release && [[ ${ID-} == debian ]])
}

# mirrors: base addresses of Debian archives in this machine's apt configuration.
# Asking apt instead of reading its files works for both formats of sources, without root
# and without a previous update. The name of the suite excludes security and third-party
# archives. If one passes nevertheless, its signature does not verify and the next address
# is tried.
mirrors() {
	apt-get update --print-uris 2>/dev/null |
		sed -nE "s|^'(.*)/dists/([^/']+)/InRelease'.*|\2 \1|p" |
		awk '$1 ~ /^(oldoldstable|oldstable|stable|testing|unstable|sid|bullseye|bookworm|trixie|forky|duke)$/ && !seen[$2]++ { print $2 }'
}

# apt_state <mirror> <suites> prepares apt's private world for one set of suites
# and prints its folder. The status file is empty, so "install" means "the whole
# closure" whatever this machine has installed.
apt_state() {
	local mirror=$1 set=$2 suite dir
	dir=$deps/apt/$set
	[[ $areas == main ]] || dir+=" $areas"
	dir=${dir// /+}
	mkdir -p "$dir/etc/apt.conf.d" "$dir/etc/preferences.d" "$dir/etc/trusted.gpg.d" \
		"$dir/lists/partial" "$dir/cache/archives/partial" "$dir/log"
	: >"$dir/status"
	: >"$dir/etc/sources.list"
	for suite in ${set//+/ }; do
		printf 'deb [arch=%s signed-by=%s] %s %s %s\n' "$arch" "$keyring" "$mirror" "$suite" "$areas" >>"$dir/etc/sources.list"
	done
	# Read after the system's configuration, so a proxy or credentials set there
	# still count, and its hooks do not.
	cat >"$dir/apt.conf" <<-CONF
		#clear DPkg;
		#clear APT::Update::Pre-Invoke;
		#clear APT::Update::Post-Invoke;
		#clear APT::Update::Post-Invoke-Success;
		#clear Acquire::IndexTargets::deb::DEP-11;
		#clear Acquire::IndexTargets::deb::DEP-11-icons;
		#clear Acquire::IndexTargets::deb::DEP-11-icons-small;
		#clear Acquire::IndexTargets::deb::CNF;
		#clear APT::Architectures;
		#clear APT::Default-Release;
		APT::Architecture "$arch";
		APT::Architectures { "$arch"; };
		APT::Install-Recommends "false";
		APT::Install-Suggests "false";
		APT::Sandbox::User "";
		APT::Get::Assume-Yes "true";
		Acquire::Languages "none";
		Acquire::PDiffs "false";
		Acquire::Retries "3";
		Acquire::AllowInsecureRepositories "false";
		Debug::NoLocking "true";
		Dir::Etc::SourceList "$dir/etc/sources.list";
		Dir::Etc::SourceParts "$dir/etc/none";
		Dir::Etc::Preferences "$dir/etc/preferences";
		Dir::Etc::PreferencesParts "$dir/etc/preferences.d";
		Dir::Etc::Trusted "$dir/etc/trusted.gpg";
		Dir::Etc::TrustedParts "$dir/etc/trusted.gpg.d";
		Dir::State "$dir";
		Dir::State::Lists "$dir/lists";
		Dir::State::status "$dir/status";
		Dir::State::extended_states "$dir/extended_states";
		Dir::Cache "$dir/cache";
		Dir::Cache::archives "$dir/cache/archives";
		Dir::Cache::pkgcache "";
		Dir::Cache::srcpkgcache "";
		Dir::Log "$dir/log";
	CONF
	printf '%s\n' "$dir"
}

can_stream() { command -v curl >/dev/null || command -v wget >/dev/null; }

# stream <uri>: its content on standard output, through the proxy apt is set to use.
stream() {
	local P=''
	eval "$(apt-config shell P Acquire::http::Proxy)"
	[[ -n $P && $P != DIRECT ]] && local -x http_proxy=$P
	if command -v curl >/dev/null; then
		curl --silent --show-error --fail --location --retry 3 "$1"
	else
		wget --quiet --tries=3 --output-document=- "$1"
	fi
}

# download <component> <mirror> <suites> <log>: leaves the packages, or the file
# "uris" for those that are streamed, in $dir/cache/archives and prints $dir. The caller holds the lock on that state.
download() {
	local component=$1 mirror=$2 set=$3 log=$4 dir target=()
	dir=$(apt_state "$mirror" "$set")
	rm -f "$dir"/cache/archives/*.deb "$dir/cache/archives/uris"
	# The suite layered on top must win, which backports do not by default.
	[[ $set == *+* ]] && target=(-t "${set##*+}")
	{
		printf '== %s from %s\n' "$component" "$set"
		# Indices a few minutes old do; older ones name packages already replaced.
		if [[ -z $(find "$dir/updated" -mmin -15 2>/dev/null) ]]; then
			# Error-Mode: without it a mirror that cannot be reached is only a warning.
			apt-get -c "$dir/apt.conf" -o APT::Update::Error-Mode=any update && touch "$dir/updated"
		fi && if [[ $closure == yes ]]; then
			apt-get -c "$dir/apt.conf" "${target[@]}" install --download-only "${packages[@]}"
		elif [[ $closure == stream ]] && can_stream; then
			apt-get -c "$dir/apt.conf" "${target[@]}" download --print-uris "${packages[@]}" >"$dir/cache/archives/uris"
		else
			(cd "$dir/cache/archives" && apt-get -c "$dir/apt.conf" "${target[@]}" download "${packages[@]}")
		fi
	} >>"$log" 2>&1 || {
		rm -f "$dir/updated"
		return 1
	}
	printf '%s\n' "$dir"
}

# extract <package or -> <tree>
extract() {
	local select=() p
	for p in "${drop[@]}"; do select+=(--exclude "$p"); done
	((${#keep[@]})) && select+=(--wildcards "${keep[@]}")
	dpkg-deb --fsys-tarfile "$1" |
		tar -x -C "$2" --no-same-owner --keep-directory-symlink \
			--exclude './usr/share/doc/*/[!c]*' --exclude './usr/share/doc/*/ch*' --exclude './usr/share/man*' --exclude './usr/share/locale*' \
			"${select[@]}"
}

# settled <file>: what a process substitution writes there, once it has.
settled() {
	local i
	for ((i = 0; i < 6000; i++)); do
		[[ -s $1 ]] && break
		sleep 0.1
	done
	cat "$1"
}

# unpack <component> <archives> <suites> unpacks into a temporary folder and renames it
# when it is complete, so that an interrupted run leaves no incomplete tree.
unpack() {
	local component=$1 archives=$2 set=$3 tmp deb
	tmp=$(mktemp -d "$deps/roots/.$component.XXXXXX")
	mkdir -p "$tmp/usr/bin" "$tmp/usr/sbin" "$tmp/usr/lib" "$tmp/usr/lib64"
	# Older packages still ship /lib: with these links both layouts end in /usr/lib.
	ln -s usr/bin "$tmp/bin" && ln -s usr/sbin "$tmp/sbin"
	ln -s usr/lib "$tmp/lib" && ln -s usr/lib64 "$tmp/lib64"
	recipe_id >"$tmp/.versions"
	printf 'suite %s\n' "$set" >>"$tmp/.versions"
	# Called from conditions, where set -e is off.
	if [[ -e $archives/uris ]]; then
		local uri='' file hash hash_found
		while read -r uri file _ hash; do
			uri=${uri//\'/}
			# The hash is of apt's signed index; nothing is used before it is compared.
			stream "$uri" | tee >(sha256sum >"$tmp/.hash") | extract - "$tmp" || break
			read -r hash_found _ < <(settled "$tmp/.hash")
			[[ $hash == "SHA256:$hash_found" ]] || {
				say "$component: $file is not what the archive's index promises"
				break
			}
			printf '%s %s\n' "${file%%_*}" "$(sed 's/^[^_]*_//; s/_[^_]*$//; s/%3a/:/' <<<"$file")" >>"$tmp/.versions"
			uri=''
		done <"$archives/uris"
		rm -f "$tmp/.hash"
		if [[ -n $uri ]]; then
			say "$component: cannot fetch or unpack ${file-}"
			rm -rf "$tmp"
			return 1
		fi
	fi
	for deb in "$archives"/*.deb; do
		[[ -e $deb ]] || continue
		# The single quotes are dpkg-deb's own variables.
		# shellcheck disable=SC2016
		if ! extract "$deb" "$tmp" ||
			! dpkg-deb -W --showformat '${Package} ${Version}\n' "$deb" >>"$tmp/.versions"; then
			say "$component: cannot unpack ${deb##*/}"
			rm -rf "$tmp"
			return 1
		fi
	done
	if [[ ! -e $tmp/$probe ]]; then
		say "$component: $probe is not in the packages of $set"
		rm -rf "$tmp"
		return 1
	fi
	chmod 755 "$tmp"
	if [[ -e $deps/roots/$component ]]; then
		mv "$deps/roots/$component" "$tmp.old"
	fi
	mv -T "$tmp" "$deps/roots/$component"
	rm -rf "$tmp.old"
}
