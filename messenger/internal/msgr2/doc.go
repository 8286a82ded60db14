// Package msgr2 encodes and decodes Ceph's msgr v2.1 protocol: banner,
// preamble, segments, epilogue and the payload of every frame (tags 1 to 20).
// It is a codec only: it reads no socket, keeps no state, knows no session.
//
// Source of the wire facts: "msgr2 protocol (msgr2.0 and msgr2.1)" in Ceph's
// developer documentation, and captures of a real monitor's exchange, which
// the tests in this package decode and encode again byte for byte.
//
// # A frame in crc mode
//
//	preamble (32 bytes)
//	segment 0, crc32c of segment 0 (the crc only when the segment is not empty)
//	segments 1 .. n-1, without padding
//	epilogue (13 bytes), only when there is more than one segment
//
// Trailing empty segments are not counted. A message has up to four segments:
// header, front, middle, data. Every other frame has one.
//
// # Ownership
//
// Append functions append to dst and keep nothing. Decode functions borrow
// their input: byte slices inside a decoded frame alias it, and are valid as
// long as it is. A decoder accepts any input: it returns an error that wraps
// one of ErrTruncated, ErrMalformed, ErrTooLarge, ErrChecksum, ErrAborted,
// and never panics. Bytes behind the last known field of a control frame are
// ignored, as Ceph ignores them: that is how frames grow.
//
// Nothing on the message path allocates.
package msgr2
