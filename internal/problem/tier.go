package problem

import "vkattn/internal/enum"

// Tier is attention.Tier, whose comment documents it.
type Tier uint8

// Tiers. The zero value picks the fastest one for a call; on a driver of the CPU that is
// TierScalar.
const (
	TierAuto     Tier = iota
	TierCPU           // the host, without a device
	TierScalar        // Vulkan 1.1 core
	TierCoopMat       // VK_KHR_cooperative_matrix
	TierCoopMat2      // VK_NV_cooperative_matrix2
	TierCubin         // a CUDA kernel in the Vulkan command buffer (VK_NVX_binary_import)
	TierCUDA          // a CUDA kernel on the same buffers
	TierNoCUDA        // TierAuto without tiers cubin and cuda
)

var tierNames = []string{"auto", "cpu", "scalar", "coopmat", "coopmat2", "cubin", "cuda", "no-cuda"}

// Valid reports whether t is one of the named tiers.
func (t Tier) Valid() bool { return int(t) < len(tierNames) }

// WithoutSPIRV reports whether the tier runs no SPIR-V: its kernels have no tiles to tune,
// no variants and no Vulkan dispatches.
func (t Tier) WithoutSPIRV() bool { return t == TierCPU || t == TierCubin || t == TierCUDA }

// Auto reports whether t names no tier: a plan chooses one.
func (t Tier) Auto() bool { return t == TierAuto || t == TierNoCUDA }

// String is "auto", "cpu", "scalar", "coopmat", "coopmat2", "cubin", "cuda" or "no-cuda".
func (t Tier) String() string { return enum.Name("Tier", tierNames, uint8(t)) }

// ParseTier is attention.ParseTier.
func ParseTier(s string) (Tier, error) { return enum.Parse[Tier]("tier", tierNames, s) }

// Set makes *Tier a flag.Value.
func (t *Tier) Set(s string) error { return enum.Set(t, s, ParseTier) }

// Type names the flag's kind, for flag packages that ask.
func (t Tier) Type() string { return "tier" }

// MarshalText writes String.
func (t Tier) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is Set.
func (t *Tier) UnmarshalText(text []byte) error { return t.Set(string(text)) }

// Access selects how kernels reach tensors.
type Access uint8

// Accesses.
const (
	AccessAuto        Access = iota // addresses if the device and the buffers have them
	AccessAddresses                 // buffer device addresses only
	AccessDescriptors               // storage buffer descriptors only
)

var accessNames = []string{"auto", "addresses", "descriptors"}

// Valid reports whether a is one of the named accesses.
func (a Access) Valid() bool { return int(a) < len(accessNames) }

// String is "auto", "addresses" or "descriptors".
func (a Access) String() string { return enum.Name("Access", accessNames, uint8(a)) }

// Tuning is attention.Tuning, whose comment documents it.
type Tuning uint8

// Tunings.
const (
	TuningAuto Tuning = iota
	TuningOff
	TuningOn
)

var tuningNames = []string{"auto", "off", "on"}

// Valid reports whether t is one of the named tunings.
func (t Tuning) Valid() bool { return int(t) < len(tuningNames) }

// String is "auto", "off" or "on".
func (t Tuning) String() string { return enum.Name("Tuning", tuningNames, uint8(t)) }

// ParseTuning is attention.ParseTuning.
func ParseTuning(s string) (Tuning, error) { return enum.Parse[Tuning]("tuning", tuningNames, s) }

// Set makes *Tuning a flag.Value.
func (t *Tuning) Set(s string) error { return enum.Set(t, s, ParseTuning) }

// Type names the flag's kind, for flag packages that ask.
func (t Tuning) Type() string { return "tuning" }

// MarshalText writes String.
func (t Tuning) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is Set.
func (t *Tuning) UnmarshalText(text []byte) error { return t.Set(string(text)) }

// Sources of a tile, as Plan.Tuning names them.
const (
	TileHeuristic = "heuristic"    // the fixed table
	TileCached    = "tuned: cache" // tuned by an earlier process
	TileTuned     = "tuned now"    // tuned by this process
	TileNamed     = "named"        // named by Experiment.Tile or Experiment.BackwardTiles
)
