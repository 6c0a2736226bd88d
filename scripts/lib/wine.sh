# shellcheck shell=bash
# Part of platforms.sh: programs for Windows under the machine's Wine, with the old lavapipe behind Wine's Vulkan.

# wine_setup <folder> writes <folder>/wine, which runs a program, and <folder>/overlay.json for go test -overlay. It
# returns 3 if the machine has no Wine or no Xvfb, without which Wine 8 has no Vulkan.
wine_setup() {
	local dir=$1 wine root file at
	wine=$(command -v wine64 || command -v wine || ls /usr/lib/wine/wine64 2>/dev/null) || return 3
	command -v Xvfb >/dev/null || return 3
	root=$(scripts/deps.sh path lavapipe-old)/usr/lib/x86_64-linux-gnu
	mkdir -p "$dir/lib"
	# The tree's libraries, except those that the machine's own Wine has started with.
	for file in "$root"/*.so*; do
		case ${file##*/} in
		ld-linux* | lib[cm].so* | libdl.so* | librt.so* | libpthread.so* | libresolv.so* | libmvec.so* | libnss* | \
			libstdc++* | libgcc_s*) ;;
		*) ln -s "$file" "$dir/lib/" ;;
		esac
	done
	printf '{"file_format_version": "1.0.1", "ICD": {"library_path": "%s", "api_version": "1.3.0"}}' \
		"$root/libvulkan_lvp.so" >"$dir/icd.json"
	Xvfb -displayfd 7 -screen 0 640x480x24 7>"$dir/display" 2>/dev/null &
	wine_display=$!
	until [[ -s $dir/display ]]; do sleep 0.1; done
	cat >"$dir/wine" <<-WRAPPER
		#!/bin/sh
		export WINEPREFIX='$dir/prefix' WINEDEBUG=-all DISPLAY=:$(<"$dir/display") LD_LIBRARY_PATH='$dir/lib'
		export VK_DRIVER_FILES='$dir/icd.json' VK_ICD_FILENAMES='$dir/icd.json'
		exec '$wine' "\$@"
	WRAPPER
	chmod 755 "$dir/wine"
	"$dir/wine" wineboot -i >/dev/null 2>&1
	# Wine 8 lacks this DLL, without which no program of Go 1.26 starts.
	"$(scripts/deps.sh cc windows/amd64)" -O2 -shared -x c -o "$dir/prefix/drive_c/windows/system32/bcryptprimitives.dll" - \
		-ladvapi32 <<-'SOURCE'
		#include <windows.h>
		BOOLEAN NTAPI SystemFunction036(PVOID, ULONG); /* RtlGenRandom */
		__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE p, SIZE_T n)
		{
			for (ULONG k; n; p += k, n -= k)
				SystemFunction036(p, k = n > 1 << 20 ? 1 << 20 : (ULONG)n);
			return TRUE;
		}
	SOURCE
	# Wine 8 answers Go's way of removing a file by STATUS_NOT_IMPLEMENTED, for which Go has no other way. Tests are
	# built with a Go that has.
	at=$(go env GOROOT)/src/internal/syscall/windows/at_windows.go
	sed 's/\tSTATUS_NOT_SUPPORTED:/\tSTATUS_NOT_SUPPORTED, NTStatus(0xC0000002):/' "$at" >"$dir/at_windows.go"
	printf '{"Replace": {"%s": "%s"}}' "$at" "$dir/at_windows.go" >"$dir/overlay.json"
}
