package buffer

import "github.com/argonaut-rdma/argonaut/verbs"

// Grant lets the peer of one QP read or write exactly the bytes of one buffer.
// It holds a reference to the buffer from Grant until Revoke.
type Grant struct{ b RDMABuffer }

// Grant makes a scoped key for exactly b's bytes with the remote rights acc
// (verbs.AccessRemoteRead, verbs.AccessRemoteWrite), usable by the peer of qp
// only. It takes a reference of its own. The arena has to be attached to qp's
// PD. ErrNotSupported where the device has no scoped keys. It must be revoked
// before qp is closed.
func (b RDMABuffer) Grant(qp *verbs.QP, acc verbs.Access) (*Grant, error) {
	return nil, ErrNotSupported
}

// GrantInto is Grant into a Grant of the caller's, zero or revoked.
func (b RDMABuffer) GrantInto(g *Grant, qp *verbs.QP, acc verbs.Access) error {
	return ErrNotSupported
}

// RKey is the key that the peer uses.
func (g *Grant) RKey() uint32 { return 0 }

// Addr is the address of the first byte, as the peer uses it.
func (g *Grant) Addr() uint64 { return 0 }

// Len is the number of bytes granted.
func (g *Grant) Len() int { return 0 }

// Buffer returns the buffer; the reference stays the grant's.
func (g *Grant) Buffer() RDMABuffer { return g.b }

// Revoke withdraws the grant: after it has returned nil no byte lands, and the
// buffer's reference is given back. On error the grant is still live and keeps
// its reference; call Revoke again. Revoking what is revoked returns nil.
func (g *Grant) Revoke() error { return ErrNotSupported }
