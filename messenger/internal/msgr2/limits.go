package msgr2

// Limits bound what a peer may announce, in bytes per segment. They are
// checked against the preamble, before anything is allocated or read.
// A zero field means the default.
type Limits struct {
	Control uint32 // the one segment of every frame but MESSAGE
	Front   uint32
	Middle  uint32
	Data    uint32
}

// Implementation limits. The protocol itself has none below 4 GiB.
const (
	// PreAuthControl is what a peer may send before it is authenticated.
	PreAuthControl = 4 << 10
	// DefaultControl holds any ident with a full address list many times over.
	DefaultControl = 64 << 10
	// DefaultFront is Ceph's own order of magnitude: monitor and OSD maps
	// travel in front segments.
	DefaultFront  = 16 << 20
	DefaultMiddle = 16 << 20
	DefaultData   = 128 << 20

	// MaxAddrs bounds an address list: Ceph's have two entries.
	MaxAddrs = 32
	// MaxMethods bounds lists of authentication methods and connection modes.
	MaxMethods = 16
)

// WithDefaults returns l with every zero field replaced by its default.
func (l Limits) WithDefaults() Limits {
	if l.Control == 0 {
		l.Control = DefaultControl
	}
	if l.Front == 0 {
		l.Front = DefaultFront
	}
	if l.Middle == 0 {
		l.Middle = DefaultMiddle
	}
	if l.Data == 0 {
		l.Data = DefaultData
	}
	return l
}
