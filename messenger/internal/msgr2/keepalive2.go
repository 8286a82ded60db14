package msgr2

import "time"

// Timestamp is Ceph's ceph_timespec: seconds and nanoseconds since 1970.
//
//	le32 seconds | le32 nanoseconds
type Timestamp struct{ Sec, Nsec uint32 }

// TimestampOf converts t; its range ends in 2106.
func TimestampOf(t time.Time) Timestamp {
	return Timestamp{Sec: uint32(t.Unix()), Nsec: uint32(t.Nanosecond())}
}

// Time converts back.
func (t Timestamp) Time() time.Time { return time.Unix(int64(t.Sec), int64(t.Nsec)) }

func (t Timestamp) appendTo(dst []byte) []byte {
	return le.AppendUint32(le.AppendUint32(dst, t.Sec), t.Nsec)
}

func (t *Timestamp) read(r *reader) { t.Sec, t.Nsec = r.u32(), r.u32() }

// Keepalive2 asks whether the peer is alive; Sent is the sender's clock.
type Keepalive2 struct{ Sent Timestamp }

// Tag implements Frame.
func (*Keepalive2) Tag() Tag { return TagKeepalive2 }

// Append implements Frame.
func (f *Keepalive2) Append(dst []byte) []byte { return f.Sent.appendTo(dst) }

// Decode implements Frame.
func (f *Keepalive2) Decode(p []byte) error {
	r := reader{p: p}
	f.Sent.read(&r)
	return r.fail("KEEPALIVE2")
}
