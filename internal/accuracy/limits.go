package accuracy

import (
	"math"

	"vkattn/internal/oracle"
	"vkattn/internal/problem"
)

// Limits are the constants of the three rules.
type Limits struct {
	Stored     problem.DType // type x is stored in
	MaxFactor  float64
	MaxFloor   float64
	MeanFactor float64
	MeanFloor  float64
	NMSE       float64
	NMSEFactor float64

	// Noise, if given, is the least error of low that counts for each element of the
	// tensor; see [oracle.Noise].
	Noise []float64
	// Rows, if given, is what rounding makes likely in each row. In rules 2 and 3 the error of low in a
	// block of rows counts as at least two standard deviations more, in rule 1 as at least the largest that a rounding
	// of this size makes.
	Rows []oracle.RowError
}

// Forward are the limits of O for a storage type.
func Forward(t problem.DType) Limits {
	nmse := map[problem.DType]float64{problem.F16: 1e-5, problem.BF16: 1e-4, problem.F32: 1e-10}
	return Limits{Stored: t, MaxFactor: 2, MaxFloor: 1e-5, MeanFactor: 1.5, MeanFloor: 1e-6, NMSE: nmse[t], NMSEFactor: 4}
}

// ForwardLSE are the limits of LSE, which is float32, for the storage type of
// the tensors it is computed from.
func ForwardLSE(t problem.DType) Limits {
	l := Forward(t)
	l.Stored = problem.F32
	return l
}

// Gradient are the limits of dQ, dK and dV for a storage type.
func Gradient(t problem.DType) Limits {
	l := Forward(t)
	l.MaxFactor, l.MaxFloor = 3, 1e-4
	return l
}

// enough elements tell the error to expect.
const enough = 1024

// slack is the growth of the factors for n elements.
func slack(n int) float64 {
	if n >= enough {
		return 1
	}
	return 1 + (math.Sqrt(enough/float64(max(n, 1)))-1)/4
}
