package iwarp

import (
	"fmt"
	"sync"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// window is a type 2 memory window: a slot of the steering tag table that a bind fills. The key's low byte is the
// binder's choice, the index is ours.
type window struct {
	dev *Device
	pd  *pd

	mu     sync.Mutex // guards what follows
	key    uint32
	bound  *region
	parent *mr
	qp     *queuePair
	gone   bool
}

var _ driver.MW = (*window)(nil)

// AllocMW makes an unbound window.
func (p *pd) AllocMW() (driver.MW, error) {
	d := p.dev
	if err := d.take(&d.nMW, d.cfg.MaxMW, "MWs"); err != nil {
		return nil, err
	}
	stag, ok := d.stags.alloc()
	if !ok {
		d.nMW.Add(-1)
		return nil, fmt.Errorf("iwarp: steering tags exhausted: %w", driver.ErrLimit)
	}
	p.children.Add(1)
	return &window{dev: d, pd: p, key: stag}, nil
}

func (w *window) RKey() uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.key
}

// Dealloc unbinds the window if need be.
func (w *window) Dealloc() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return nil
	}
	w.gone = true
	w.unbindLocked()
	w.dev.stags.release(w.key)
	w.pd.children.Add(-1)
	w.dev.nMW.Add(-1)
	return nil
}

// bind executes a BIND_MW request of q; false when the request is wrong.
func (w *window) bind(q *queuePair, b *driver.MWBind) bool {
	m, ok := b.MR.(*mr)
	if !ok || w.pd != q.pd || m.r.pd != q.pd || m.parent != nil || b.RKey>>8 != w.RKey()>>8 || b.RKey == 0 ||
		m.r.access&driver.AccessMWBind == 0 || b.Access&^(driver.AccessRemote|driver.AccessZeroBased) != 0 || b.Length == 0 ||
		b.Access&(driver.AccessRemoteWrite|driver.AccessRemoteAtomic) != 0 && m.r.access&driver.AccessLocalWrite == 0 {
		return false
	}
	off, ok := m.r.offset(b.Addr, b.Length)
	if !ok {
		return false
	}
	base := b.Addr
	if b.Access&driver.AccessZeroBased != 0 {
		base = 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone || w.bound != nil || !m.adopt() { // type 2: a bound window is invalidated first
		return false
	}
	r := &region{stag: b.RKey, owner: w}
	r.init(m.r.mem[off:off+b.Length:off+b.Length], base, b.Access, w.pd, q)
	w.key, w.bound, w.parent, w.qp = b.RKey, r, m, q
	q.windows.Store(w, r)
	w.dev.stags.set(w.key, r)
	return true
}

// revoke ends all use of the binding r, if it is still the window's. The key stays the window's.
func (w *window) revoke(r *region) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bound == r {
		w.unbindLocked()
	}
}

// unbindLocked ends the binding, if there is one. Called with mu held.
func (w *window) unbindLocked() {
	if w.bound == nil {
		return
	}
	w.dev.stags.set(w.key, nil)
	w.bound.close()
	w.parent.kids.Add(-1)
	w.qp.windows.Delete(w)
	w.bound, w.parent, w.qp = nil, nil, nil
}
