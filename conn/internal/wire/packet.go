package wire

import "fmt"

// Sizes, as specified.
const (
	PacketLen  = 8  // bytes of a packet header
	RecordLen  = 16 // bytes of a record header
	SegmentLen = 16 // bytes of a segment of an RTS
)

// Type is the kind of a record.
type Type uint8

// The kinds of records.
const (
	Msg     Type = iota + 1 // head and payload, or the first part of it
	Frag                    // a further part of the payload of the last Msg
	RndvRTS                 // head, and grants of the payload
	Done                    // the number of payloads fetched so far
	Goodbye                 // nothing follows in this direction
	Close                   // the connection ends here, whatever is on its way
)

var typeNames = [...]string{"", "MSG", "FRAG", "RTS", "DONE", "GOODBYE", "CLOSE"}

func (t Type) String() string {
	if t > 0 && int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprint(uint8(t))
}

// Why a connection ends, in a CLOSE.
const (
	CloseConn     = 1 // it was closed
	CloseEndpoint = 2 // its endpoint was
)

// IsClose reports whether b, what a packet holds, is a CLOSE, and why.
func IsClose(b []byte) (why uint64, ok bool) {
	if len(b) != RecordLen || Type(b[0]) != Close {
		return 0, false
	}
	r, _, err := ParseRecord(b)
	return r.Payload, err == nil
}

const flagParked = 1 // packet flag

// Packet is the header of a SEND.
type Packet struct {
	Epoch   uint32
	Credits uint16 // receive buffers posted again since the last packet
	Parked  bool   // the sender of the packet has parked rendezvous of the other end
}

// Put encodes p into b[:PacketLen].
func (p Packet) Put(b []byte) {
	le.PutUint32(b, p.Epoch)
	le.PutUint16(b[4:], p.Credits)
	b[6], b[7] = 0, 0
	if p.Parked {
		b[6] = flagParked
	}
}

// ParsePacket decodes a packet header.
func ParsePacket(b []byte) (Packet, error) {
	if len(b) < PacketLen {
		return Packet{}, bad("a packet of %d bytes", len(b))
	}
	if b[6]&^flagParked != 0 || b[7] != 0 {
		return Packet{}, bad("packet flags 0x%x%02x", b[7], b[6])
	}
	return Packet{Epoch: le.Uint32(b), Credits: le.Uint16(b[4:]), Parked: b[6] != 0}, nil
}

// Record is the header of a record. What follows it in the packet: Head bytes
// of head; then the payload (Msg, Frag), as far as it is in the packet, or
// Segments segments (RndvRTS).
type Record struct {
	Type     Type
	Segments uint16 // RndvRTS
	Head     uint32 // bytes of head: Msg, RndvRTS
	// Payload is the bytes of payload of the whole message (Msg, RndvRTS), or
	// those still to come, the record's own included (Frag), or the number of
	// payloads fetched since the connection was made (Done), or why it ends
	// (Close).
	Payload uint64
}

// Put encodes r into b[:RecordLen].
func (r Record) Put(b []byte) {
	b[0], b[1] = byte(r.Type), 0
	le.PutUint16(b[2:], r.Segments)
	le.PutUint32(b[4:], r.Head)
	le.PutUint64(b[8:], r.Payload)
}

// ParseRecord decodes the record at the start of b, the rest of a packet, and
// returns how many bytes of b it takes up: header, head, segments, and as much
// of the payload as is there.
func ParseRecord(b []byte) (r Record, n int, err error) {
	if len(b) < RecordLen {
		return r, 0, bad("%d bytes of a record", len(b))
	}
	r = Record{Type: Type(b[0]), Segments: le.Uint16(b[2:]), Head: le.Uint32(b[4:]), Payload: le.Uint64(b[8:])}
	if b[1] != 0 {
		return r, 0, bad("record flags 0x%x", b[1])
	}
	room := uint64(len(b) - RecordLen)
	if uint64(r.Head) > room {
		return r, 0, bad("a head of %d bytes in %d", r.Head, room)
	}
	room -= uint64(r.Head)
	end := RecordLen + int(r.Head)
	switch {
	case r.Type != RndvRTS && r.Segments != 0, r.Type > RndvRTS && r.Head != 0, r.Type == Frag && r.Head != 0:
		return r, 0, bad("%v with %d segments and a head of %d bytes", r.Type, r.Segments, r.Head)
	case r.Type == Msg:
		return r, end + int(min(r.Payload, room)), nil
	case r.Type == Frag:
		if r.Payload == 0 || room == 0 {
			return r, 0, bad("an empty FRAG")
		}
		return r, end + int(min(r.Payload, room)), nil
	case r.Type == RndvRTS:
		segs := uint64(r.Segments) * SegmentLen
		if segs == 0 || segs > room || r.Payload == 0 {
			return r, 0, bad("RTS of %d bytes in %d segments, with room for %d bytes", r.Payload, r.Segments, room)
		}
		return r, end + int(segs), nil
	case r.Type == Done, r.Type == Close:
		return r, end, nil
	case r.Type == Goodbye:
		if r.Payload != 0 {
			return r, 0, bad("a GOODBYE with a payload")
		}
		return r, end, nil
	}
	return r, 0, bad("record type %d", r.Type)
}

// Segment is one granted range of an RTS.
type Segment struct {
	Addr uint64
	Len  uint32 // bytes
	RKey uint32
}

// Put encodes s into b[:SegmentLen].
func (s Segment) Put(b []byte) {
	le.PutUint64(b, s.Addr)
	le.PutUint32(b[8:], s.Len)
	le.PutUint32(b[12:], s.RKey)
}

// ParseSegment decodes b[:SegmentLen].
func ParseSegment(b []byte) Segment {
	return Segment{Addr: le.Uint64(b), Len: le.Uint32(b[8:]), RKey: le.Uint32(b[12:])}
}

// CheckSegments checks that the segments in b, without empty ones, hold total
// bytes.
func CheckSegments(b []byte, total uint64) error {
	var sum uint64
	for ; len(b) >= SegmentLen; b = b[SegmentLen:] {
		n := le.Uint32(b[8:])
		if n == 0 {
			return bad("an empty segment")
		}
		sum += uint64(n)
	}
	if sum != total {
		return bad("segments of %d bytes for a payload of %d", sum, total)
	}
	return nil
}
