package msgr2

// Refused ends a handshake and says why (server to client). It is this project's
// own: only peers that have agreed on it by their banners get it.
//
//	u8 reason | le32 length, text for people
type Refused struct {
	Reason uint8
	Text   []byte
}

// MaxRefusedText bounds the text, bytes.
const MaxRefusedText = 512

// Tag implements Frame.
func (*Refused) Tag() Tag { return TagRefused }

// Append implements Frame. Of a text that is too long the rest is left out.
func (f *Refused) Append(dst []byte) []byte {
	return appendBlob(append(dst, f.Reason), f.Text[:min(len(f.Text), MaxRefusedText)])
}

// Decode implements Frame.
func (f *Refused) Decode(p []byte) error {
	r := reader{p: p}
	f.Reason, f.Text = r.u8(), r.blob()
	if r.err == nil && len(f.Text) > MaxRefusedText {
		r.err = ErrTooLarge
	}
	return r.fail("REFUSED")
}
