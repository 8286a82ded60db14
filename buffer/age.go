package buffer

import "time"

// ageWatch knows which holders were told of. It is the clock's.
type ageWatch struct {
	every uint32 // seconds between looks
	last  uint32
	told  map[uint32]uint64 // slot: generation
}

// watchAge logs what is held for longer than Config.MaxAge, once per Get.
func (a *Arena) watchAge(w *ageWatch) {
	now := a.now.Load()
	if now-w.last < w.every {
		return
	}
	w.last = now
	limit := uint32(max(a.cfg.MaxAge, time.Second) / time.Second)
	type late struct {
		slot  uint32
		owner Owner
		age   uint32
		size  int
	}
	var news []late
	still := make(map[uint32]uint64, len(w.told))
	a.walk(func(s uint32, cl uint8, state uint64) {
		m := a.slots[s].meta.Load()
		if !referenced(state) || now-bornAt(m) < limit || now < bornAt(m) {
			return
		}
		if told, ok := w.told[s]; !ok || told != gen(state) {
			news = append(news, late{s, ownerOf(m), now - bornAt(m), a.sizes[cl]})
		}
		still[s] = gen(state)
	})
	w.told = still
	for _, l := range news {
		a.overdue.Add(1)
		args := []any{"owner", a.nameOf(l.owner), "bytes", l.size, "age", time.Duration(l.age) * time.Second, "buffer", l.slot}
		if t := a.tracer.Load(); t != nil {
			refs, posted := t.of(l.slot, still[l.slot])
			for _, r := range append(refs, posted...) {
				args = append(args, "stack", r.String())
				break
			}
		}
		a.cfg.Logger.Warn("buffer held for long", args...)
	}
}
