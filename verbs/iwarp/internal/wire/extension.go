package wire

import (
	"bytes"
	"encoding/binary"
)

// Extension is the trailer that two of our own exchange behind the user's private data. A responder sends one only in
// answer to one, so no other implementation ever sees a feature of it used.
//
//	 0               1               2               3
//	+---------------+---------------+---------------+---------------+
//	|      magic, eight bytes                                       |
//	|                                                               |
//	+---------------+---------------+---------------+---------------+
//	|    version    |   features    |   user's private data length  |
//	+---------------+---------------+---------------+---------------+
//	|      largest ULPDU accepted, bytes                            |
//	+---------------+---------------+---------------+---------------+
type Extension struct {
	Jumbo    bool   // four-byte FPDU lengths
	Ops7306  bool   // atomics and immediate data
	WaiveCRC bool   // no checksum where both sides waive it, whatever the C bits say
	MaxULPDU uint32 // bytes
}

// ExtensionLen is the trailer's length in bytes.
const ExtensionLen = 16

const (
	extVersion  = 1
	extJumbo    = 0x01
	extOps7306  = 0x02
	extWaiveCRC = 0x04
)

var extMagic = []byte("ArgoRNIC")

// AppendExtension appends the trailer to b, whose last user bytes are the user's private data.
func AppendExtension(b []byte, user int, e Extension) []byte {
	b = append(b, extMagic...)
	b = append(b, extVersion, byte(bit(e.Jumbo, extJumbo)|bit(e.Ops7306, extOps7306)|bit(e.WaiveCRC, extWaiveCRC)))
	b = binary.BigEndian.AppendUint16(b, uint16(user))
	return binary.BigEndian.AppendUint32(b, e.MaxULPDU)
}

// DecodeExtension looks for the trailer at the end of private data (without the enhanced prefix) and returns what is
// left for the user. Anything that is not exactly a trailer of a version we know is the user's.
func DecodeExtension(private []byte) (user []byte, e Extension, ok bool) {
	n := len(private) - ExtensionLen
	if n < 0 {
		return private, Extension{}, false
	}
	t := private[n:]
	if !bytes.Equal(t[:8], extMagic) || t[8] != extVersion || int(binary.BigEndian.Uint16(t[10:])) != n {
		return private, Extension{}, false
	}
	e = Extension{
		Jumbo:    t[9]&extJumbo != 0,
		Ops7306:  t[9]&extOps7306 != 0,
		WaiveCRC: t[9]&extWaiveCRC != 0,
		MaxULPDU: binary.BigEndian.Uint32(t[12:]),
	}
	return private[:n], e, true
}
