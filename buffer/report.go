package buffer

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// Report is what an arena knows of its memory: who holds what, which regions
// there are and where they are registered, what is live on the devices. It is
// made to be marshalled as JSON or written as text.
type Report struct {
	Time     time.Time
	Tracing  bool // references have stacks
	Stats    Stats
	Regions  []RegionInfo
	Holders  []Holder
	Devices  []DeviceInfo
	Complete bool // false: Holders was cut off at ReportHolders
}

// RegionInfo describes a region of an arena.
type RegionInfo struct {
	Region  int
	State   string // "live", "leaving"
	Addr    uint64
	Length  uint64 // bytes
	Backing string
	Keys    []RegionKey
}

// RegionKey is a registration of a region.
type RegionKey struct {
	Device string
	LKey   uint32
	Posted int // SGEs of requests posted or not yet polled that name it
}

// DeviceInfo is what is live on a device that the arena is attached to.
type DeviceInfo struct {
	Device    string
	Resources []verbs.Resource
}

// ReportHolders is how many holders a Report has at most.
const ReportHolders = 10000

// Report looks at everything: the arena and all objects of the devices that it
// is attached to. It takes milliseconds for many buffers, and holds up Gets and
// Releases only for moments.
func (a *Arena) Report() Report {
	r := Report{Time: time.Now(), Tracing: a.Tracing(), Stats: a.Stats(), Holders: a.Holders(), Complete: true}
	if len(r.Holders) > ReportHolders {
		r.Holders, r.Complete = r.Holders[:ReportHolders], false
	}
	ats := *a.attachments.Load()
	a.mu.Lock()
	for i := range a.regions {
		g := &a.regions[i]
		if g.state == regionNone {
			continue
		}
		info := RegionInfo{Region: i, State: "live", Addr: g.addr(), Length: uint64(len(g.mem)), Backing: g.backing}
		if g.state == regionLeaving {
			info.State = "leaving"
		}
		r.Regions = append(r.Regions, info)
	}
	a.mu.Unlock()
	seen := map[*verbs.Device]bool{}
	for _, at := range ats {
		dev := at.pd.Device()
		for i := range r.Regions {
			if mr := at.regs[r.Regions[i].Region].mr.Load(); mr != nil && mr.Live() {
				r.Regions[i].Keys = append(r.Regions[i].Keys, RegionKey{Device: dev.Name(), LKey: mr.LKey(), Posted: mr.InFlight()})
			}
		}
		if !seen[dev] {
			seen[dev] = true
			r.Devices = append(r.Devices, DeviceInfo{Device: dev.Name(), Resources: dev.Resources()})
		}
	}
	return r
}

// WriteText writes the report for people to read.
func (r Report) WriteText(w io.Writer) error {
	var s strings.Builder
	st := &r.Stats
	fmt.Fprintf(&s, "arena at %s\n", r.Time.Format(time.RFC3339))
	fmt.Fprintf(&s, "  %d bytes: %d posted, %d held, %d free (fragmentation %.0f %%)\n", st.Total, st.Posted, st.Held, st.Free, 100*st.Fragmentation)
	fmt.Fprintf(&s, "  mapped %d of at most %d (off the Go heap: %d), grown %d, shrunk %d, leaving %d\n", st.Mapped, st.Budget, st.OffHeap, st.Grown, st.Shrunk, st.Leaving)
	if st.GrowError != "" {
		fmt.Fprintf(&s, "  %s\n", st.GrowError)
	}
	fmt.Fprintf(&s, "  %d Gets wait, %d waited, %d failed, %d held for longer than allowed; %d grants; %d bytes quarantined\n",
		st.Waiting, st.Waited, st.Exhausted, st.Overdue, st.Grants, st.Quarantined)
	for _, o := range st.Owners {
		if o.Held > 0 || o.Quota > 0 {
			fmt.Fprintf(&s, "  owner %q: %d held, %d of it posted, quota %d\n", o.Name, o.Held, o.Posted, o.Quota)
		}
	}
	for _, g := range r.Regions {
		fmt.Fprintf(&s, "region %d, %s: 0x%x, %d bytes, %s", g.Region, g.State, g.Addr, g.Length, g.Backing)
		for _, k := range g.Keys {
			fmt.Fprintf(&s, "; %s lkey 0x%x, named %d times by posted work", k.Device, k.LKey, k.Posted)
		}
		s.WriteString("\n")
	}
	for _, h := range r.Holders {
		fmt.Fprintf(&s, "holder %s\n", strings.ReplaceAll(h.String(), "\n", "\n  "))
	}
	if !r.Complete {
		fmt.Fprintf(&s, "more holders: only %d are listed\n", ReportHolders)
	}
	if len(r.Holders) > 0 && !r.Tracing {
		s.WriteString("(no stacks: tracing is off, see Arena.SetTrace)\n")
	}
	for _, d := range r.Devices {
		for _, o := range d.Resources {
			fmt.Fprintf(&s, "%s: %v, %v old", d.Device, o, o.Age.Round(time.Second))
			if o.Posted > 0 {
				fmt.Fprintf(&s, ", %d posted", o.Posted)
			}
			if o.Stack != "" {
				fmt.Fprintf(&s, ", made at\n  %s", strings.ReplaceAll(strings.TrimSuffix(o.Stack, "\n"), "\n", "\n  "))
			}
			s.WriteString("\n")
		}
	}
	_, err := io.WriteString(w, s.String())
	return err
}
