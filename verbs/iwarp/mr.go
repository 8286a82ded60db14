package iwarp

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// mr is a memory region or a scoped key. It is never used again for another: work that named it may still look.
type mr struct {
	r      region
	pages  int64
	pinned bool
	steps  driver.RegSteps
	parent *mr          // of a scoped key
	kids   atomic.Int64 // windows and scoped keys made of it; deregistered at the end
	once   sync.Once
}

var (
	_ driver.MR         = (*mr)(nil)
	_ driver.StepTeller = (*mr)(nil)
)

const deregistered = -1

const accessKnown = driver.AccessLocalWrite | driver.AccessRemote | driver.AccessMWBind | driver.AccessZeroBased

func checkAccess(acc driver.Access) error {
	if acc&^accessKnown != 0 {
		return fmt.Errorf("iwarp: access %v: %w", acc&^accessKnown, driver.ErrNotSupported)
	}
	if acc&(driver.AccessRemoteWrite|driver.AccessRemoteAtomic) != 0 && acc&driver.AccessLocalWrite == 0 {
		return fmt.Errorf("iwarp: access %v: %w: remote write and atomic need local write", acc, driver.ErrInvalid)
	}
	return nil
}

// RegMR follows an adapter's steps: validate, pin when configured, account the pages translated, make a key. Without
// pinning its cost does not depend on the length. The slice keeps Go memory alive.
func (p *pd) RegMR(mem []byte, acc driver.Access) (driver.MR, error) {
	begin := time.Now()
	d := p.dev
	if err := checkAccess(acc); err != nil {
		return nil, err
	}
	if len(mem) == 0 || len(mem) > d.cfg.MaxMRSize {
		return nil, fmt.Errorf("iwarp: region of %d bytes: %w: from 1 to %d", len(mem), driver.ErrInvalid, d.cfg.MaxMRSize)
	}
	if err := d.take(&d.nMR, d.cfg.MaxMR, "MRs"); err != nil {
		return nil, err
	}
	steps := driver.RegSteps{Validate: time.Since(begin)}
	addr := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	pages := int64((addr+uint64(len(mem))+pageSize-1)/pageSize - addr/pageSize) // head and tail included
	if d.pages.Add(pages) > int64(d.cfg.MaxPages) {
		d.pages.Add(-pages)
		d.nMR.Add(-1)
		return nil, fmt.Errorf("iwarp: region of %d pages: translations exhausted (%d): %w", pages, d.cfg.MaxPages, driver.ErrLimit)
	}
	steps.Pages = pages
	steps.Translate = time.Since(begin) - steps.Validate
	if d.cfg.Pin {
		if err := d.pins.pin(addr, uint64(len(mem))); err != nil {
			d.pages.Add(-pages)
			d.nMR.Add(-1)
			return nil, err
		}
		steps.Pin = time.Since(begin) - steps.Validate - steps.Translate
		steps.Pinned = pages * pageSize
	}
	base := addr
	if acc&driver.AccessZeroBased != 0 {
		base = 0
	}
	m := &mr{pages: pages, pinned: d.cfg.Pin}
	m.r.init(mem, base, acc, p, nil)
	if !d.publish(m) {
		m.giveBack()
		return nil, fmt.Errorf("iwarp: steering tags exhausted: %w", driver.ErrLimit)
	}
	took := time.Since(begin)
	steps.Key = took - steps.Validate - steps.Translate - steps.Pin
	m.steps = steps
	d.stats.Registrations.Add(1)
	d.stats.RegNanos.Add(int64(took))
	return m, nil
}

// RegScoped makes a key of its own for a part of a region, for one QP's peer: O(1).
func (p *pd) RegScoped(parent driver.MR, off, n uint64, acc driver.Access, qp driver.QP) (driver.MR, error) {
	d := p.dev
	pm, ok1 := parent.(*mr)
	q, ok2 := qp.(*queuePair)
	if !ok1 || !ok2 || pm.r.pd != p || q.pd != p || pm.parent != nil {
		return nil, fmt.Errorf("iwarp: scoped key: region or QP of another PD: %w", driver.ErrInvalid)
	}
	if acc&^driver.AccessRemote != 0 || acc == 0 {
		return nil, fmt.Errorf("iwarp: scoped key with access %v: %w: remote rights only", acc, driver.ErrInvalid)
	}
	if acc&(driver.AccessRemoteWrite|driver.AccessRemoteAtomic) != 0 && pm.r.access&driver.AccessLocalWrite == 0 {
		return nil, fmt.Errorf("iwarp: scoped key with access %v: %w: the region has no local write", acc, driver.ErrInvalid)
	}
	size := uint64(len(pm.r.mem))
	if n == 0 || off > size || n > size-off {
		return nil, fmt.Errorf("iwarp: scoped key of [%d, +%d) in %d bytes: %w", off, n, size, driver.ErrInvalid)
	}
	if err := d.take(&d.nMR, d.cfg.MaxMR, "MRs"); err != nil {
		return nil, err
	}
	if !pm.adopt() {
		d.nMR.Add(-1)
		return nil, fmt.Errorf("iwarp: scoped key of a deregistered region: %w", driver.ErrInvalid)
	}
	m := &mr{parent: pm}
	m.r.init(pm.r.mem[off:off+n:off+n], pm.r.base+off, acc, p, q)
	m.r.owner = m
	if !d.publish(m) {
		m.giveBack()
		return nil, fmt.Errorf("iwarp: steering tags exhausted: %w", driver.ErrLimit)
	}
	return m, nil
}

// adopt counts a window or scoped key made of the region; false when the region is gone.
func (m *mr) adopt() bool {
	for {
		n := m.kids.Load()
		if n < 0 {
			return false
		}
		if m.kids.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// publish makes the key and lets it be used.
func (d *Device) publish(m *mr) bool {
	m.r.pd.children.Add(1)
	stag, ok := d.stags.alloc()
	if !ok {
		return false
	}
	m.r.stag = stag
	d.stags.set(stag, &m.r)
	return true
}

// giveBack undoes the accounting of a region that was published, or nearly.
func (m *mr) giveBack() {
	d := m.r.pd.dev
	m.r.pd.children.Add(-1)
	d.pages.Add(-m.pages)
	d.nMR.Add(-1)
	if m.pinned {
		d.pins.unpin(regionAddr(&m.r))
	}
	if m.parent != nil {
		m.parent.kids.Add(-1)
	}
}

func regionAddr(r *region) (addr, n uint64) {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.mem)))), uint64(len(r.mem))
}

// revoke ends all use of the key; the object stays until Deregister.
func (m *mr) revoke(*region) {
	m.once.Do(func() {
		m.r.pd.dev.stags.set(m.r.stag, nil)
		m.r.close()
	})
}

// RegSteps says what the registration did.
func (m *mr) RegSteps() driver.RegSteps { return m.steps }

func (m *mr) Addr() uint64   { return m.r.base }
func (m *mr) Length() uint64 { return uint64(len(m.r.mem)) }
func (m *mr) LKey() uint32   { return m.r.stag }

func (m *mr) RKey() uint32 {
	if m.r.access&driver.AccessRemote == 0 {
		return 0
	}
	return m.r.stag
}

// Deregister is refused while windows or scoped keys are made of the region; then it changes nothing.
func (m *mr) Deregister() error {
	if !m.kids.CompareAndSwap(0, deregistered) {
		if n := m.kids.Load(); n > 0 {
			return fmt.Errorf("iwarp: region has %d windows or scoped keys: %w", n, driver.ErrInvalid)
		}
		return nil
	}
	d := m.r.pd.dev
	m.revoke(&m.r)
	d.stags.release(m.r.stag)
	m.giveBack()
	return nil
}
