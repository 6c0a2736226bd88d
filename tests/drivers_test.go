package tests

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// The driver under test, the tiers that each driver must offer, and the device session that
// all tests share.

var (
	scalarTypes = []cases.Target{
		cases.On(attention.TierScalar, attention.F16), cases.On(attention.TierScalar, attention.BF16), cases.On(attention.TierScalar, attention.F32),
	}
	coopmatF16   = []cases.Target{cases.On(attention.TierCoopMat, attention.F16)}
	coopmatBF16  = []cases.Target{cases.On(attention.TierCoopMat, attention.BF16)}
	coopmatF32   = []cases.Target{cases.On(attention.TierCoopMat, attention.F32)}
	coopmat2F16  = []cases.Target{cases.On(attention.TierCoopMat2, attention.F16)}
	coopmat2BF16 = []cases.Target{cases.On(attention.TierCoopMat2, attention.BF16)}
	cpuTypes     = []cases.Target{
		cases.On(attention.TierCPU, attention.F16), cases.On(attention.TierCPU, attention.BF16), cases.On(attention.TierCPU, attention.F32),
	}
)

// driver is what the tests expect of the driver under test.
type driver struct {
	name        string
	device      bool           // there must be one
	compileOnly bool           // pipelines compile, nothing executes
	tiers       []cases.Target // exactly these must be available
	open        bool           // more tiers may be
	turn        int            // drivers of one kind have each another: see turns_test.go
	turns       int            // that null devices of its kind take; 0 and 1: it is alone
}

// driverUnderTest reads VKATTN_DRIVER. The tiers of native devices depend on the vendor:
// the extensions of an NVIDIA driver are known, and a missing one is a failure.
func driverUnderTest() driver {
	name := os.Getenv("VKATTN_DRIVER")
	switch {
	case name == "", name == "none":
		return driver{name: name}
	case name == "lavapipe":
		return driver{name: name, device: true, tiers: slices.Concat(coopmat2F16, coopmatF16, scalarTypes)}
	case name == "lavapipe-old":
		return driver{name: name, device: true, tiers: scalarTypes, turn: 1}
	case name == "swiftshader":
		return driver{name: name, device: true, tiers: scalarTypes, turn: 2}
	case testdevice.Null():
		return nullDriver(name)
	}
	return driver{name: name, device: true, open: true, tiers: scalarTypes}
}

// nullDriver is what the tests expect of a null device.
func nullDriver(name string) driver {
	d := driver{name: name, device: true, compileOnly: true, tiers: scalarTypes}
	switch name {
	case "radv-navi31":
		d.tiers, d.turn, d.turns = slices.Concat(coopmatF16, scalarTypes), 0, 3
	case "radv-strix1":
		d.tiers, d.turn, d.turns = slices.Concat(coopmatF16, scalarTypes), 1, 3
	case "radv-navi21":
		d.turn, d.turns = 2, 3
	case "radv-gfx1201":
		d.tiers = slices.Concat(coopmatF16, coopmatBF16, coopmatF32, scalarTypes)
	case "nvk-turing":
		d.tiers, d.turn, d.turns = slices.Concat(coopmatF16, scalarTypes), 0, 3
	case "nvk-ampere":
		d.tiers, d.turn, d.turns = slices.Concat(coopmatF16, scalarTypes), 1, 3
	case "nvk-ada":
		d.tiers, d.turn, d.turns = slices.Concat(coopmatF16, scalarTypes), 2, 3
	case "anv-bmg":
		d.tiers = slices.Concat(coopmatF16, coopmatBF16, coopmatF32, scalarTypes)
	case "turnip", "honeykrisp":
	default:
		d.open = true
	}
	return d
}

const vendorNVIDIA = 0x10de

// session is the device under test with what is expected of it. It is opened once, and
// TestMain closes it.
type session struct {
	driver
	dev *vk.Device // nil: none
}

var theSession = sync.OnceValues(func() (*session, error) {
	s := &session{driver: driverUnderTest()}
	if s.name == "none" {
		return s, nil
	}
	dev, err := vk.Open(vk.Options{Validation: validation(), PipelineCache: "off", Timeout: patience})
	if err != nil {
		if !s.device && errors.Is(err, vk.ErrNoDevice) {
			return s, nil
		}
		return nil, fmt.Errorf("driver %q: %w", s.name, err)
	}
	s.dev = dev
	if s.name == "" {
		s.open = true
	}
	if s.open && !s.compileOnly && dev.Info().VendorID == vendorNVIDIA {
		s.tiers = slices.Concat(coopmat2F16, coopmat2BF16, coopmatF16, coopmatBF16, scalarTypes)
	}
	return s, nil
})

func validation() bool {
	on, err := vk.ValidationByEnv()
	if err != nil {
		panic(err) // of the tests' own environment
	}
	return on
}

// open returns the device under test.
func open(t testing.TB) *session {
	t.Helper()
	s, err := theSession()
	require.NoError(t, err)
	return s
}

// openDevice skips the test if no device executes.
func openDevice(t testing.TB) *session {
	t.Helper()
	s := open(t)
	if s.dev == nil {
		t.Skip("no Vulkan device here")
	}
	if s.compileOnly {
		t.Skip("nothing executes on a null device")
	}
	return s
}

// openTiers skips the test if the device executes nothing. Without a device there is the
// CPU tier.
func openTiers(t testing.TB) *session {
	t.Helper()
	s := open(t)
	if s.compileOnly {
		t.Skip("nothing executes on a null device")
	}
	return s
}

// available lists the targets that take every call: those of reported but for float32 on
// cooperative matrices, which is dense and forward alone.
func (s *session) available() []cases.Target {
	return slices.DeleteFunc(s.reported(), f32OnMatrices)
}

// dense lists the targets that take dense calls of the forward pass: available, and float32
// on cooperative matrices. Devices without matrices of bfloat16 run it with terms of float16
// (attention.Experiment.HalfTerms).
func (s *session) dense() []cases.Target {
	all := s.reported()
	for _, tt := range slices.Clone(all) {
		if t := cases.On(tt.Tier, attention.F32); onMatrices(tt) && tt.DType == attention.F16 && !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
}

// f32OnMatricesDim is the largest head dim of float32 on cooperative matrices.
const f32OnMatricesDim = 256

func f32OnMatrices(tt cases.Target) bool { return onMatrices(tt) && tt.DType == attention.F32 }

// experiment is what the kernels of a target need to run on the device.
func (s *session) experiment(tt cases.Target) attention.Experiment {
	return attention.Experiment{HalfTerms: f32OnMatrices(tt) && !slices.Contains(s.reported(), tt)}
}

// reported lists the expected tiers, and on devices without an expectation all others that
// they report. Without a driver under test the CPU tier comes first.
func (s *session) reported() []cases.Target {
	var all []cases.Target
	if s.name == "" || s.name == "none" {
		all = append(all, cpuTypes...)
	}
	if s.dev == nil {
		return all
	}
	all = append(all, s.tiers...)
	if !s.open {
		return all
	}
	for _, r := range attention.TierReport(s.dev) {
		t := cases.On(r.Tier, r.DType)
		if r.Available && t.Tier != attention.TierCPU && !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
}

// Every expected tier is available. Without this test a missing tier would only make the
// other tests shorter.
func TestTiersOfTheDriver(t *testing.T) {
	s := open(t)
	if s.dev == nil {
		t.Skip("no Vulkan device here")
	}
	t.Logf("%s, %s %s", s.dev.Info().Name, s.dev.Info().DriverName, s.dev.Info().DriverInfo)
	for _, r := range attention.TierReport(s.dev) {
		if r.Tier == attention.TierCPU {
			continue
		}
		tt := cases.On(r.Tier, r.DType)
		want := slices.Contains(s.tiers, tt)
		if want != r.Available && (want || !s.open) {
			t.Errorf("%v: available is %v, want %v: %s", tt, r.Available, want, r.Reason)
		}
		if r.Reason == "" {
			t.Errorf("%v: no reason is given", tt)
		}
		cfg := attention.Config{DType: r.DType, HeadDim: 64, Tier: r.Tier}
		op, err := attention.New(attention.On(s.dev), cfg)
		if !r.Available {
			require.ErrorIs(t, err, attention.ErrUnsupported, "%v", tt)
			continue
		}
		require.NoError(t, err, "%v", tt)
		require.NoError(t, op.Close())
	}
}
