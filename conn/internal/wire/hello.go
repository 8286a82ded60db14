package wire

import "fmt"

// Handshake, as specified.
const (
	magic      = "ARGC"
	Version    = 1
	HelloLen   = 32 // bytes of a hello of this version
	RefusalLen = 8  // bytes of a refusal of this version

	minCredits  = 8       // two are kept for credits and notices
	minStaged   = 2       // of an acceptor that gives the others later
	minRecvSize = 4 << 10 // bytes: a frame with a head of some use
	maxRecvSize = 1 << 20 // bytes
)

// Features of an endpoint; a connection has those that both ends have.
const (
	FeatureRendezvous uint32 = 1 << iota // takes RTS records and answers with DONE
	FeatureClose                         // takes CLOSE records
)

// Hello is what each end says of itself in the connection's private data.
type Hello struct {
	Credits    uint16 // receive buffers posted for the peer
	Most       uint16 // how many they may become; 0: they stay as many. An acceptor's only
	Rendezvous uint16 // RTS records that may be outstanding towards this end
	Features   uint32
	RecvSize   uint32 // bytes of each receive buffer
	Epoch      uint32 // chosen by the dialer, repeated by the acceptor
	MaxMessage uint64 // bytes of payload that this end accepts
}

// Put encodes h.
func (h *Hello) Put(b *[HelloLen]byte) {
	copy(b[:], magic)
	b[4] = HelloLen
	b[5] = Version
	le.PutUint16(b[6:], h.Credits)
	le.PutUint32(b[8:], h.Features)
	le.PutUint32(b[12:], h.RecvSize)
	le.PutUint32(b[16:], h.Epoch)
	le.PutUint16(b[20:], h.Rendezvous)
	le.PutUint16(b[22:], h.Most)
	le.PutUint64(b[24:], h.MaxMessage)
}

// VersionError is a hello of a version that is not ours.
type VersionError struct{ Version uint8 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("the peer speaks version %d of the connection protocol, we speak %d", e.Version, Version)
}

// ParseHello decodes a hello; bytes behind its own length are ignored, since
// some transports pad private data.
func ParseHello(b []byte) (Hello, error) {
	var h Hello
	if len(b) < 6 || string(b[:4]) != magic {
		return h, bad("no hello in the private data")
	}
	n := int(b[4])
	if n > len(b) || n < 6 {
		return h, bad("a hello of %d bytes in %d of private data", n, len(b))
	}
	if b[5] != Version {
		return h, &VersionError{b[5]}
	}
	if n < HelloLen {
		return h, bad("a hello of %d bytes", n)
	}
	h = Hello{
		Credits:    le.Uint16(b[6:]),
		Features:   le.Uint32(b[8:]),
		RecvSize:   le.Uint32(b[12:]),
		Epoch:      le.Uint32(b[16:]),
		Rendezvous: le.Uint16(b[20:]),
		Most:       le.Uint16(b[22:]),
		MaxMessage: le.Uint64(b[24:]),
	}
	if h.Most == 0 {
		h.Most = h.Credits
	}
	switch {
	case h.Most < minCredits || h.Credits < minStaged || h.Credits > h.Most:
		return h, bad("a hello with %d credits, at most %d", h.Credits, h.Most)
	case h.RecvSize < minRecvSize || h.RecvSize > maxRecvSize:
		return h, bad("a hello with receive buffers of %d bytes", h.RecvSize)
	case h.MaxMessage > 1<<62:
		return h, bad("a hello with messages of %d bytes", h.MaxMessage)
	}
	return h, nil
}

// Reason is why a connection request was refused.
type Reason uint8

// Reasons of refusals.
const (
	ReasonMalformed Reason = iota + 1 // the hello could not be read
	ReasonVersion                     // no common version
	ReasonBusy                        // no resources for a further connection
	ReasonDenied                      // the application refused
	ReasonClosing                     // the endpoint is shutting down
)

var reasonNames = [...]string{"", "malformed request", "version", "busy", "denied", "shutting down"}

func (r Reason) String() string {
	if r > 0 && int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprint(uint8(r))
}

// PutRefusal encodes a refusal.
func PutRefusal(b *[RefusalLen]byte, r Reason) {
	copy(b[:], magic)
	b[4] = RefusalLen
	b[5] = Version
	b[6] = byte(r)
	b[7] = 0
}

// ParseRefusal decodes a refusal; false: it is none of ours.
func ParseRefusal(b []byte) (Reason, bool) {
	if len(b) < RefusalLen || string(b[:4]) != magic || int(b[4]) < RefusalLen {
		return 0, false
	}
	return Reason(b[6]), true
}
