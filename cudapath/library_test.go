package cudapath

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/vk"
)

// Without the driver every call returns a one-line error that says so, and does nothing.
func TestWithoutTheDriver(t *testing.T) {
	junk := filepath.Join(t.TempDir(), "junk.so")
	require.NoError(t, os.WriteFile(junk, []byte("no library"), 0o644))
	for _, c := range []struct{ env, want string }{
		{"off", "switched off by VKATTN_LIBCUDA=off"},
		{"/nonexistent/libcuda.so.1", "/nonexistent/libcuda.so.1: "},
		{junk, junk},
		{"libm.so.6", "it has no cuInit: a driver for CUDA 11.2 or newer is needed"},
	} {
		t.Setenv(LibraryEnv, c.env)
		for _, err := range []error{Available(), func() error { _, err := Devices(); return err }(),
			func() error { _, err := Match(&vk.DeviceInfo{}); return err }()} {
			require.ErrorIs(t, err, vk.ErrUnsupported)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "\n")
		}
		require.Contains(t, Missing(&vk.DeviceInfo{}, "", attention.F16), c.want)
		require.ErrorIs(t, tier{}.Check(&vk.DeviceInfo{}, attention.F16), vk.ErrUnsupported)
	}
	_, err := Open(nil)
	require.ErrorIs(t, err, vk.ErrInvalid)
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		err  Error
		is   error
		text string
	}{
		{Error{Op: "cuMemCreate", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY"}, vk.ErrOutOfMemory, "cudapath: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"},
		{Error{Op: "x", Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS", Detail: "y"}, vk.ErrDeviceLost, "cudapath: x: CUDA_ERROR_ILLEGAL_ADDRESS: y"},
		{Error{Op: "x", Code: 719, Name: "z"}, vk.ErrDeviceLost, "cudapath: x: z"},
		{Error{Op: "x", Code: 801, Name: "z"}, vk.ErrUnsupported, "cudapath: x: z"},
		{Error{Op: "x", Code: 1, Name: "z"}, vk.ErrInvalid, "cudapath: x: z"},
		{Error{Op: "x", Err: vk.ErrClosed}, vk.ErrClosed, "cudapath: x: vk: closed"},
		{Error{Op: "x", Code: 701, Name: "z"}, nil, "cudapath: x: z"},
	} {
		require.Equal(t, c.text, c.err.Error())
		for _, sentinel := range []error{vk.ErrOutOfMemory, vk.ErrDeviceLost, vk.ErrUnsupported, vk.ErrInvalid, vk.ErrClosed} {
			require.Equal(t, sentinel == c.is, errors.Is(&c.err, sentinel), "%v is %v", &c.err, sentinel)
		}
	}
}
