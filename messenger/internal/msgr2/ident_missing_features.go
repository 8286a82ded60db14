package msgr2

// IdentMissingFeatures refuses a ClientIdent whose sender lacks features that
// the server requires.
//
//	le64 missing features
type IdentMissingFeatures struct{ Features uint64 }

// Tag implements Frame.
func (*IdentMissingFeatures) Tag() Tag { return TagIdentMissingFeatures }

// Append implements Frame.
func (f *IdentMissingFeatures) Append(dst []byte) []byte { return le.AppendUint64(dst, f.Features) }

// Decode implements Frame.
func (f *IdentMissingFeatures) Decode(p []byte) error {
	r := reader{p: p}
	f.Features = r.u64()
	return r.fail("IDENT_MISSING_FEATURES")
}
