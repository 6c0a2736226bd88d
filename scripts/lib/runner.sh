# shellcheck shell=bash
# shellcheck disable=SC2154 # deps.sh assigns what is read here
# Part of deps.sh: the environment in which a program finds one driver and no other. Reads
# $deps, $here, $ldso and $triple.

# manifest <name> <library> writes a driver manifest with an absolute path: the
# packaged ones name the library alone, which the machine's own copy could answer to.
manifest() {
	local file=$deps/icd/$1.json tmp want
	want=$(printf '{"file_format_version": "1.0.1", "ICD": {"library_path": "%s", "api_version": "%s"}}' "$2" "$3")
	if [[ ! -r $file || $(<"$file") != "$want" ]]; then
		mkdir -p "$deps/icd"
		tmp=$(mktemp "$deps/icd/.XXXXXX")
		printf '%s\n' "$want" >"$tmp"
		chmod 644 "$tmp"
		mv -f "$tmp" "$file"
	fi
	printf '%s\n' "$file"
}

setting() { printf 'export %s=%q\n' "$1" "$2"; }

# runner_env <runner> prints what a program needs to find that driver and no other.
# VKATTN_LDSO, VKATTN_LIBRARY_PATH and VKATTN_PRELOAD, when set, say how it has to be started.
runner_env() {
	local runner=$1 component driver='' base own icd='' lib shim='' shims name gpu=()
	case $runner in
	lavapipe | lavapipe-old | swiftshader) component=$runner ;;
	radv-?*) component=lavapipe driver=radeon shim=amdgpu gpu=(AMDGPU_GPU_ID "${runner#radv-}") ;;
	nvk-turing) component=lavapipe driver=nouveau shim=nouveau gpu=(NOUVEAU_CHIPSET 162) ;;
	nvk-ampere) component=lavapipe driver=nouveau shim=nouveau gpu=(NOUVEAU_CHIPSET 172) ;;
	nvk-ada) component=lavapipe driver=nouveau shim=nouveau gpu=(NOUVEAU_CHIPSET 192) ;;
	turnip) component=lavapipe driver=freedreno shim=freedreno gpu=(FD_GPU_ID 630) ;;
	honeykrisp) component=lavapipe driver=asahi shim=asahi ;;
	anv-?*) component=lavapipe driver=intel shim=intel gpu=(INTEL_STUB_GPU_PLATFORM "${runner#anv-}") ;;
	*)
		say "unknown runner: $runner (known: ${runners[*]} ${nulls[*]}, radv-<gpu>, anv-<gpu>)"
		return 2
		;;
	esac
	[[ $shim == intel ]] && shims=intel-shim || shims=drm-shim
	if [[ $shim && ! (-r $deps/roots/lavapipe/.versions && -r $deps/roots/$shims/.versions) ]]; then
		say "$runner needs the trees lavapipe and $shims; run $0 lavapipe and $0 $shims"
		return 3
	fi
	own=$deps/roots/$component name=${driver:-$runner}
	if [[ -r $own/.versions ]]; then
		# All runners use the newest C library: older drivers work with it, and so the
		# validation layers of its tree can be loaded too.
		base=$deps/roots/lavapipe
		[[ -r $base/.versions ]] || base=$deps/roots/lavapipe-old
		if [[ ! -r $base/.versions ]]; then
			say "$runner runs on the C library of the lavapipe tree, which is absent; run $0 lavapipe"
			return 3
		fi
		lib=$base/usr/lib/$triple
		[[ $own == "$base" ]] || lib+=:$own/usr/lib/$triple
		case $runner in
		lavapipe | lavapipe-old) driver=$own/usr/lib/$triple/libvulkan_lvp.so ;;
		swiftshader) driver=$own/usr/lib/chromium/libvk_swiftshader.so ;;
		*)
			driver=$own/usr/lib/$triple/libvulkan_$driver.so
			setting VKATTN_PRELOAD "$deps/roots/$shims/usr/lib/$triple/lib${shim}_noop_drm_shim.so"
			;;
		esac
		icd=$(manifest "$name" "$driver" 1.3.0)
		setting VKATTN_LDSO "$base/$ldso"
		setting VKATTN_LIBRARY_PATH "$lib"
		setting VKATTN_LIBVULKAN "$base/usr/lib/$triple/libvulkan.so.1"
		setting VK_LAYER_PATH "$base/usr/share/vulkan/explicit_layer.d"
		# drirc: Mesa's own defaults, of the same version as the driver.
		setting DRIRC_CONFIGDIR "$own/usr/share/drirc.d"
	elif on_system "$component"; then
		case $runner in
		lavapipe) icd=$(system_manifest lvp) ;;
		swiftshader) icd=$(manifest swiftshader "$VKATTN_SWIFTSHADER" 1.3.0) ;;
		lavapipe-old)
			say "lavapipe-old: the system has one lavapipe, which the runner lavapipe covers"
			return 3
			;;
		esac
	else
		say "$component is absent; run $0 $component"
		return 3
	fi
	# The second name is what loaders before 1.3.207 read.
	setting VK_DRIVER_FILES "$icd"
	setting VK_ICD_FILENAMES "$icd"
	# Implicit layers of this machine (overlays, capture tools) are built against
	# its own C library and have no business in a test.
	setting VK_LOADER_LAYERS_DISABLE '~implicit~'
	setting VKATTN_DRIVER "$runner"
	# For tests that start programs of their own.
	setting VKATTN_EXEC "$here/run-with $runner"
	if [[ $shim ]]; then
		setting VKATTN_NULL_DEVICE 1
		[[ ${gpu-} ]] && setting "${gpu[@]}"
		# A cached pipeline would be one that was not compiled.
		setting MESA_SHADER_CACHE_DISABLE true
	fi
}
