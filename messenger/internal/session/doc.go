// Package session decides what one end of a session does: how messages are
// numbered and acknowledged, who a session is, what a fault leads to, how a
// peer that comes back is answered, and which of two simultaneous attempts to
// connect wins. It follows the rules of Ceph's ProtocolV2 (documentation:
// dev/msgr2).
//
// It is pure: what happened and the time go in, what is to be done comes out.
// There is no goroutine, clock, lock or socket in it; its caller serialises the
// calls, keeps the messages, and sends the frames.
package session
