package attention

// hostRows is a HostView that also says where its rows begin.
type hostRows struct {
	HostView
	offset  int64 // of element [0,0,0,0], in elements
	strides Strides
	size    int64 // bytes of an element
}

// viewRows is ViewHost.
func viewRows(t Tensor, dtype DType, heads, seq, dim int) (hostRows, error) {
	view, err := ViewHost(t, dtype, heads, seq, dim)
	return hostRows{view, t.Offset, t.Strides.Resolve(heads, seq, dim), int64(dtype.Size())}, err
}

// byteOf returns the byte offset of a row.
func (v *hostRows) byteOf(b, h, row int) int64 { return v.element(b, h, row) * v.size }

// element returns the element offset of a row.
func (v *hostRows) element(b, h, row int) int64 {
	return v.offset + int64(b)*v.strides.Batch + int64(h)*v.strides.Head + int64(row)*v.strides.Seq
}
