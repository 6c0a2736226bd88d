package score

// Softcap is limit * tanh(x / limit).
func Softcap(x Expr, limit float64) Expr {
	l := Const(limit)
	return Mul(l, Tanh(Div(x, l)))
}

// Options are the options of a call that change its scores.
type Options struct {
	Softcap     float64 // 0: none
	Bias, ALiBi bool
}

// Score is what the options make of the score S: softcap, bias and ALiBi, in this order.
func (o Options) Score() Expr {
	s := Var(S)
	if o.Softcap != 0 {
		s = Softcap(s, o.Softcap)
	}
	if o.Bias {
		s = Add(s, Var(Bias))
	}
	if o.ALiBi {
		s = Sub(s, Mul(Var(Slope), Abs(Sub(Var(I), Var(J)))))
	}
	return s
}
