package buffer

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// Grant lets the peer of one QP read or write exactly the bytes of one buffer.
// It holds a reference to the buffer from Grant until it ends. Its methods are
// safe for concurrent use.
type Grant struct {
	mu    sync.Mutex
	b     RDMABuffer // zero: ended
	at    *attachment
	kind  KeyKind
	key   verbs.MR  // KeyScoped
	mw    *verbs.MW // KeyWindow
	rkey  uint32    // but for KeyScoped
	addr  uint64    // likewise
	acc   verbs.Access
	once  bool
	gen   uint64 // counts the grants that it has been
	timer *time.Timer
	ended func(GrantEnd)
}

// KeyKind is what a grant gives the peer on a device.
type KeyKind uint8

const (
	// KeyNone: nothing, the device can not confine.
	KeyNone KeyKind = iota
	// KeyScoped: a scoped key (verbs.MR.Scope), for the range and the connection.
	KeyScoped
	// KeyWindow: a type 2 memory window, for the range and the connection. It is
	// made by a request on the QP: see GrantWindow.
	KeyWindow
	// KeyWide: the key of the whole region, of an arena with Config.TrustFabric.
	KeyWide
)

var keyKindNames = [...]string{"none", "scoped key", "window", "wide key"}

func (k KeyKind) String() string {
	if int(k) < len(keyKindNames) {
		return keyKindNames[k]
	}
	return fmt.Sprint(uint8(k))
}

// keysOf is what grants are made of on a device, the narrowest first.
func keysOf(caps verbs.Caps, trust bool) KeyKind {
	switch {
	case caps.ScopedKeys:
		return KeyScoped
	case caps.MW2 && caps.MWConfines:
		return KeyWindow
	case trust:
		return KeyWide
	}
	return KeyNone
}

// Keys is what a grant of the arena's memory is on pd; KeyNone where the arena is
// not attached.
func (a *Arena) Keys(pd *verbs.PD) KeyKind {
	if at := a.attachment(pd); at != nil {
		return at.keys
	}
	return KeyNone
}

// TrustFabric reports whether the arena was made with Config.TrustFabric.
func (a *Arena) TrustFabric() bool { return a.cfg.TrustFabric }

// Rights are the access rights with which b is registered on pd; false where it
// is not registered there.
func (b RDMABuffer) Rights(pd *verbs.PD) (verbs.Access, bool) {
	b.live()
	if at := b.a.attachment(pd); at != nil {
		if mr := at.regs[b.slot>>b.a.rgnShift].mr.Load(); mr != nil {
			return mr.Access(), true
		}
	}
	return 0, false
}

// GrantTerms are what a peer is given, and for how long.
type GrantTerms struct {
	// Access is what the peer may do: AccessRemoteRead, AccessRemoteWrite,
	// AccessRemoteAtomic.
	Access verbs.Access
	// Once ends the grant with the operation: the peer sends its last message
	// about it as SEND_WITH_INV with the grant's key, and the completion of that
	// message, when polled, ends the grant. It needs a connection with
	// Features.SendInv.
	Once bool
	// Lifetime ends the grant after that time, whatever the peer does or does
	// not do. 0: no limit.
	Lifetime time.Duration
	// Ended, if not nil, is told once how the grant ended, except when Revoke
	// did it: on the goroutine that polls, or one of its own when Lifetime is
	// over. It must not block.
	Ended func(GrantEnd)
}

// GrantEnd is how a grant ended by itself.
type GrantEnd struct {
	ByPeer bool  // the peer invalidated the key; else Lifetime was over
	Err    error // it could not be withdrawn: it is still live, call Revoke
}

// GrantFor is Grant with terms. It returns ErrNotSupported, besides, where Once
// is asked for and one of the ends has no send with invalidate, and for a wide
// key (Config.TrustFabric) with Once or Lifetime, which it can not keep.
func (b RDMABuffer) GrantFor(qp *verbs.QP, t GrantTerms) (*Grant, error) {
	g := new(Grant)
	if err := b.grantFor(g, qp, t, func() error { return b.GrantInto(g, qp, t.Access) }); err != nil {
		return nil, err
	}
	return g, nil
}

// GrantWindowFor is GrantWindow with terms: see GrantFor.
func (b RDMABuffer) GrantWindowFor(qp *verbs.QP, t GrantTerms, wrid uint64) (*Grant, error) {
	g := new(Grant)
	if err := b.grantFor(g, qp, t, func() error { return b.GrantWindowInto(g, qp, t.Access, wrid) }); err != nil {
		return nil, err
	}
	return g, nil
}

func (b RDMABuffer) grantFor(g *Grant, qp *verbs.QP, t GrantTerms, grant func() error) error {
	if t.Once && !qp.Features().SendInv {
		return fmt.Errorf("%w: a grant for one operation needs send with invalidate on both ends: use Lifetime, and Revoke", ErrNotSupported)
	}
	if t.Lifetime < 0 {
		return fmt.Errorf("%w: a grant for %v", ErrInvalid, t.Lifetime)
	}
	if (t.Once || t.Lifetime > 0) && b.a.Keys(qp.PD()) == KeyWide {
		return fmt.Errorf("%w: the key of a whole region can not be withdrawn: no Once and no Lifetime with Config.TrustFabric", ErrNotSupported)
	}
	if err := grant(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended, g.once = t.Ended, t.Once
	if t.Once {
		if g.kind == KeyWindow {
			g.mw.OnInvalidate(g.ender(true))
		} else {
			g.key.OnInvalidate(g.ender(true))
		}
	}
	if t.Lifetime > 0 {
		g.timer = time.AfterFunc(t.Lifetime, g.ender(false))
	}
	return nil
}

// ender makes what ends the grant by itself. Under Grant.mu.
func (g *Grant) ender(byPeer bool) func() {
	gen := g.gen
	return func() {
		g.mu.Lock()
		if g.b.IsZero() || g.gen != gen { // revoked meanwhile, and perhaps used again
			g.mu.Unlock()
			return
		}
		ended := g.ended
		err := g.revokeLocked()
		g.mu.Unlock()
		if ended != nil {
			ended(GrantEnd{ByPeer: byPeer, Err: err})
		}
	}
}

// Grant makes a key for exactly b's bytes with the remote rights acc
// (verbs.AccessRemoteRead, verbs.AccessRemoteWrite), usable by the peer of qp
// only; or, with Config.TrustFabric on devices that can not confine a key,
// returns that of the region. It takes a reference of its own. The arena has to
// be attached to qp's PD. ErrNotSupported where it would have to be a window (see
// GrantWindow), or nothing (KeyNone). It must be revoked before qp is closed; a
// wide one in use by a peer that does not answer any more, after.
func (b RDMABuffer) Grant(qp *verbs.QP, acc verbs.Access) (*Grant, error) {
	g := new(Grant)
	if err := b.GrantInto(g, qp, acc); err != nil {
		return nil, err
	}
	return g, nil
}

// GrantInto is Grant into a Grant of the caller's, zero or revoked, which it
// reuses without allocating.
func (b RDMABuffer) GrantInto(g *Grant, qp *verbs.QP, acc verbs.Access) error {
	return b.grant(g, qp, acc, func(at *attachment, mr *verbs.MR, off uint64) error {
		switch at.keys {
		case KeyScoped:
			return mr.ScopeInto(&g.key, qp, off, uint64(b.size()), acc)
		case KeyWide:
			if b.size() == 0 {
				return fmt.Errorf("%w: a grant of no bytes", ErrInvalid)
			}
			if acc &= verbs.AccessRemoteAtomic; acc != 0 {
				return fmt.Errorf("%w: %v with Config.TrustFabric", ErrNotSupported, acc)
			}
			g.rkey, g.addr = mr.RKey(), mr.Addr()+off
			return nil
		case KeyWindow:
			return fmt.Errorf("%w: %s grants by windows: use GrantWindow", ErrNotSupported, qp.Device().Name())
		}
		return fmt.Errorf("%w: %s has no keys that are confined to a range and a connection: send the payload in messages, or see Config.TrustFabric",
			ErrNotSupported, qp.Device().Name())
	})
}

// GrantWindow is Grant by a type 2 memory window, on devices with Caps.MW2 and
// Caps.MWConfines. It posts a request on qp, which completes with wrid on qp's
// send CQ; what is posted on qp afterwards may carry the key to the peer. Until
// that completion has been polled Revoke is refused, as long as qp is not in ERR.
// Errors, besides those of Grant: verbs.ErrQueueFull, verbs.ErrQPState (not
// connected), verbs.ErrLimit (windows).
func (b RDMABuffer) GrantWindow(qp *verbs.QP, acc verbs.Access, wrid uint64) (*Grant, error) {
	g := new(Grant)
	if err := b.GrantWindowInto(g, qp, acc, wrid); err != nil {
		return nil, err
	}
	return g, nil
}

// Window allocates g's window ahead, so that GrantWindowInto does not fail for
// want of one. Revoke gives it up. g is zero or revoked.
func (g *Grant) Window(pd *verbs.PD) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.b.IsZero() {
		return fmt.Errorf("%w: the Grant is in use: Revoke it first", ErrInvalid)
	}
	return g.window(pd)
}

// window sees to it that g has a window of pd. Under Grant.mu.
func (g *Grant) window(pd *verbs.PD) error {
	if g.mw != nil && g.mw.PD() == pd {
		return nil
	}
	if err := g.closeWindow(); err != nil {
		return err
	}
	w, err := pd.AllocMW()
	if err == nil {
		g.mw = w
	}
	return err
}

// closeWindow gives g's window up, if it has one. Under Grant.mu.
func (g *Grant) closeWindow() error {
	if g.mw == nil {
		return nil
	}
	err := g.mw.Close()
	if err != nil && !errors.Is(err, verbs.ErrDeviceLost) {
		return err
	}
	g.mw = nil
	return nil
}

// GrantWindowInto is GrantWindow into a Grant of the caller's, zero or revoked.
func (b RDMABuffer) GrantWindowInto(g *Grant, qp *verbs.QP, acc verbs.Access, wrid uint64) error {
	if caps := qp.Device().Caps(); !caps.MW2 || !caps.MWConfines {
		return fmt.Errorf("%w: %s has no windows that confine", ErrNotSupported, qp.Device().Name())
	}
	return b.grant(g, qp, acc, func(_ *attachment, mr *verbs.MR, off uint64) error {
		if err := g.window(qp.PD()); err != nil {
			return err
		}
		if err := qp.BindMW(g.mw, mr, off, uint64(b.size()), acc, wrid); err != nil {
			return errors.Join(err, g.closeWindow()) // not bound: nothing is in its way
		}
		g.kind, g.rkey, g.addr = KeyWindow, g.mw.RKey(), mr.Addr()+off
		return nil
	})
}

// grant fills g in, with what key makes.
func (b RDMABuffer) grant(g *Grant, qp *verbs.QP, acc verbs.Access, key func(at *attachment, mr *verbs.MR, off uint64) error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.b.IsZero() {
		return fmt.Errorf("%w: the Grant is in use: Revoke it first", ErrInvalid)
	}
	if acc&verbs.AccessRemote == 0 || acc&^verbs.AccessRemote != 0 {
		return fmt.Errorf("%w: a grant of %v: give AccessRemoteRead, AccessRemoteWrite, AccessRemoteAtomic", ErrInvalid, acc)
	}
	pd := qp.PD()
	a := b.a
	at := a.attachment(pd)
	if at == nil {
		return fmt.Errorf("%w: the arena is not attached to the PD of the QP: Attach it first", ErrInvalid)
	}
	// Detach looks at the count after it has taken the attachment away.
	at.grants.Add(1)
	if a.attachment(pd) != at {
		at.grants.Add(-1)
		return fmt.Errorf("%w: the arena is being detached from the PD of the QP", ErrClosed)
	}
	ref := b.Retain()
	mr := at.regs[b.slot>>a.rgnShift].mr.Load()
	g.kind = at.keys
	if err := key(at, mr, a.offset(b.num())+uint64(b.off())); err != nil {
		ref.Release()
		at.grants.Add(-1)
		return err
	}
	a.grants.Add(1)
	g.b, g.at, g.acc, g.once = ref, at, acc, false
	g.gen++
	return nil
}

// GrantInfo says what a grant is of. It has no key in it.
type GrantInfo struct {
	Owner  string // of the buffer
	Len    int    // bytes granted
	Access verbs.Access
	Once   bool
	Kind   KeyKind
}

// Info describes the grant; false once revoked.
func (g *Grant) Info() (GrantInfo, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.b.IsZero() {
		return GrantInfo{}, false
	}
	return GrantInfo{Owner: g.b.Owner(), Len: g.b.Len(), Access: g.acc, Once: g.once, Kind: g.kind}, true
}

// Kind is what the grant is made of.
func (g *Grant) Kind() KeyKind {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.kind
}

// RKey is the key that the peer uses; 0 once revoked.
func (g *Grant) RKey() uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.b.IsZero() {
		return 0
	}
	if g.kind != KeyScoped {
		return g.rkey
	}
	return g.key.RKey()
}

// Addr is the address of the first byte, as the peer uses it; 0 once revoked.
func (g *Grant) Addr() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.b.IsZero() {
		return 0
	}
	if g.kind != KeyScoped {
		return g.addr
	}
	return g.key.Addr()
}

// Len is the number of bytes granted; 0 once revoked.
func (g *Grant) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.Len()
}

// Buffer returns the buffer, zero once revoked. The reference stays the
// grant's.
func (g *Grant) Buffer() RDMABuffer {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b
}

// Revoke withdraws the grant: after it has returned nil no byte lands, and the
// buffer's reference is given back; with a wide key it only does the latter. On
// error the grant is still live and keeps its reference; call Revoke again, for a
// window whose error matches verbs.ErrBusy once its request's completion has been
// polled. Revoking what is revoked returns nil.
func (g *Grant) Revoke() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.b.IsZero() {
		return g.closeWindow()
	}
	return g.revokeLocked()
}

// revokeLocked is Revoke of a live grant. Under Grant.mu.
func (g *Grant) revokeLocked() error {
	if g.timer != nil {
		g.timer.Stop()
	}
	var err error
	switch g.kind {
	case KeyScoped:
		err = deregister(&g.key)
	case KeyWindow:
		err = g.closeWindow()
	}
	if err != nil {
		return err
	}
	g.at.grants.Add(-1)
	g.b.a.grants.Add(-1)
	b := g.b
	g.b, g.at, g.timer, g.ended = RDMABuffer{}, nil, nil, nil
	b.Release()
	return nil
}
