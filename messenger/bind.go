package messenger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/argonaut-rdma/argonaut/conn"
)

// Bind listens on addrs. With port 0 it is one of Config.BindPorts, or any. What
// can not be had is tried again, see Config.BindRetries. It may be called more than
// once, and calls wait for one another. When one address fails, the others of this
// call are closed again, also where that is a device that is lost meanwhile; one that
// is lost later takes its addresses along (see conn.Endpoint.Lost). ctx bounds the
// call. Errors: ErrInvalid (a scheme without transport), ErrClosed,
// conn.ErrDeviceLost, those of the network, ctx's.
func (m *Messenger) Bind(ctx context.Context, addrs AddrVec) error {
	if err := m.binding.take(ctx); err != nil {
		return err
	}
	defer m.binding.give()
	return m.bind(ctx, addrs, nil)
}

// Rebind makes the messenger another incarnation of its entity, with a new nonce
// and other ports on the hosts that it was bound to: peers that know the old one
// do not take this one for it. It stops listening where it did, on every transport,
// marks every connection down, and binds as Bind does with port 0, but to none of
// the ports of before nor of avoid; addresses on a device that is lost are left out.
// (Ceph: rebind(avoid_ports).) After an error nothing is bound, and Bind may be
// called. Errors: Bind's.
func (m *Messenger) Rebind(ctx context.Context, avoid ...uint16) error {
	if err := m.binding.take(ctx); err != nil {
		return err
	}
	defer m.binding.give()
	m.mu.Lock()
	if m.closing.Load() {
		m.mu.Unlock()
		return errShutDown
	}
	listening, asked := m.listening, m.asked
	for _, a := range m.bound {
		if port, ok := portOf(a); ok {
			avoid = append(avoid, port)
		}
	}
	m.listening, m.asked, m.bound = nil, nil, nil
	m.tell()
	nonce := m.nonce.Load()
	for m.nonce.Load() == nonce {
		m.nonce.Store(uint32(random64()) | 1)
	}
	m.mu.Unlock()
	var errs []error
	for _, ln := range listening {
		errs = append(errs, ln.close())
	}
	m.MarkDownAll()
	anew := make(AddrVec, len(asked))
	for i, a := range asked {
		host, _, err := net.SplitHostPort(a.HostPort())
		if err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		anew[i].URL = a.Scheme() + "://" + net.JoinHostPort(host, "0")
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("messenger: stop listening: %w", err)
	}
	for {
		there := slices.DeleteFunc(slices.Clone(anew), func(a EntityAddr) bool { return m.isLost(a.Scheme()) })
		err := m.bind(ctx, there, avoid)
		if !errors.Is(err, conn.ErrDeviceLost) || !slices.ContainsFunc(there, func(a EntityAddr) bool { return m.isLost(a.Scheme()) }) {
			return err
		}
		// One was lost while it was being bound: on with what is left.
	}
}

// PortRange is the ports First to Last. The zero value is none of its own: any.
type PortRange struct{ First, Last uint16 }

func (r PortRange) String() string {
	if r == (PortRange{}) {
		return "any"
	}
	return fmt.Sprintf("%d to %d", r.First, r.Last)
}

// gate lets one pass at a time; who waits may give up.
type gate chan struct{}

func (g gate) take(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g gate) give() { <-g }

// listening is one address that is listened on.
type listening struct {
	at EntityAddr // with the port that was got
	ln net.Listener
	ep *conn.Endpoint // where ln is nil
	on net.Addr
}

func (l listening) close() error {
	if l.ln != nil {
		return l.ln.Close()
	}
	return l.ep.Unlisten(l.on)
}

func portOf(a EntityAddr) (uint16, bool) {
	_, port, err := net.SplitHostPort(a.HostPort())
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return uint16(n), err == nil
}

// bind is Bind, with ports other than those of avoid where it chooses. m.binding is
// taken.
func (m *Messenger) bind(ctx context.Context, addrs AddrVec, avoid []uint16) (err error) {
	var got []listening
	defer func() {
		if err != nil {
			for _, l := range got {
				err = errors.Join(err, l.close())
			}
		}
	}()
	for _, a := range addrs {
		if _, err := ParseAddr(a.URL); err != nil {
			return err
		}
		if a.Scheme() != SchemeTCP && m.endpoints[a.Scheme()] == nil {
			return fmt.Errorf("%w: no transport for %s", ErrInvalid, a.URL)
		}
	}
	for _, a := range addrs {
		l, err := m.listenPatiently(ctx, a, avoid)
		if err != nil {
			return fmt.Errorf("messenger: listen on %s: %w", a.URL, err)
		}
		got = append(got, l)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing.Load() {
		return errShutDown
	}
	for _, l := range got {
		if m.isLost(l.at.Scheme()) { // watch may have been here, and does not come again
			return fmt.Errorf("messenger: listen on %s: %w", l.at.URL, conn.ErrDeviceLost)
		}
	}
	m.asked = append(m.asked, addrs...)
	for _, l := range got {
		l.at.Nonce = m.nonce.Load()
		m.bound = append(m.bound, l.at)
		m.listening = append(m.listening, l)
		if l.ln != nil {
			m.wg.Add(1)
			go m.accept(l.ln) // ends when the listener is closed
		}
	}
	m.tell()
	return nil
}

// listenPatiently tries Config.BindRetries times more than once, where the network
// may change its mind: a port that is still in use, an interface that is not up.
func (m *Messenger) listenPatiently(ctx context.Context, a EntityAddr, avoid []uint16) (l listening, err error) {
	for again := 0; ; again++ {
		l, err = m.listenSomewhere(ctx, a, avoid)
		if err == nil || again >= m.cfg.BindRetries || errors.Is(err, ErrClosed) || errors.Is(err, conn.ErrDeviceLost) {
			return l, err
		}
		if ended := ctx.Err(); ended != nil {
			return l, fmt.Errorf("%w: %w", ended, err)
		}
		m.log.Warn("listening failed, trying again", "addr", a.URL, "in", m.cfg.BindRetryDelay, "err", err)
		pause := time.NewTimer(m.cfg.BindRetryDelay)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return l, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		if m.closing.Load() {
			return l, errShutDown
		}
	}
}

// listenSomewhere listens on a, for port 0 on the first of the ports to choose from
// that can be had.
func (m *Messenger) listenSomewhere(ctx context.Context, a EntityAddr, avoid []uint16) (l listening, err error) {
	if port, _ := portOf(a); port != 0 {
		return m.listen(ctx, a)
	}
	ports := m.cfg.BindPorts
	if ports == (PortRange{}) {
		return m.listenAnywhere(ctx, a, avoid)
	}
	host, _, _ := net.SplitHostPort(a.HostPort())
	for port := int(ports.First); port <= int(ports.Last); port++ {
		if slices.Contains(avoid, uint16(port)) {
			continue
		}
		l, err = m.listen(ctx, EntityAddr{URL: a.Scheme() + "://" + net.JoinHostPort(host, strconv.Itoa(port))})
		if err == nil || errors.Is(err, ErrClosed) || ctx.Err() != nil {
			return l, err
		}
	}
	if err == nil {
		return l, fmt.Errorf("%w: Config.BindPorts (%v) are all to be avoided", ErrInvalid, ports)
	}
	return l, fmt.Errorf("no port of %v can be had, the last one for: %w", ports, err)
}

// listenAnywhere has the system choose. A port that is to be avoided is held until
// another one has been found.
func (m *Messenger) listenAnywhere(ctx context.Context, a EntityAddr, avoid []uint16) (l listening, err error) {
	var unwanted []listening
	defer func() {
		for _, u := range unwanted {
			if err := u.close(); err != nil {
				m.log.Warn("stop listening", "addr", u.at.URL, "err", err)
			}
		}
	}()
	for range len(avoid) + 1 {
		if l, err = m.listen(ctx, a); err != nil {
			return l, err
		}
		if port, ok := portOf(l.at); !ok || !slices.Contains(avoid, port) {
			return l, nil
		}
		unwanted = append(unwanted, l)
	}
	return l, fmt.Errorf("%w: only ports that are to be avoided can be had", ErrInvalid)
}

// listen listens on a.
func (m *Messenger) listen(ctx context.Context, a EntityAddr) (l listening, err error) {
	if ep := m.endpoints[a.Scheme()]; ep != nil {
		l.ep = ep
		if l.on, err = ep.ListenOn(ctx, a.HostPort()); err == nil {
			l.at = hostAddr(a.Scheme(), l.on)
		}
		return l, err
	}
	if l.ln, err = m.cfg.ListenStream(ctx, a.HostPort()); err == nil {
		l.at = hostAddr(SchemeTCP, l.ln.Addr())
	}
	return l, err
}

// hostAddr is a bound address as it is told: with the port that was got, on the host
// that was asked for if that is a number, else on what the transport says.
func hostAddr(scheme string, a net.Addr) EntityAddr {
	if ap, err := netip.ParseAddrPort(a.String()); err == nil {
		return EntityAddr{URL: scheme + "://" + ap.String()}
	}
	return EntityAddr{URL: scheme + "://" + a.String()}
}

// dialFrom is the host that we are bound to, where there is one that can reach
// hostport: of its family, if that is a number. nil: any.
func (m *Messenger) dialFrom(hostport string) net.Addr {
	to, err := netip.ParseAddrPort(hostport)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.bound {
		ap, e := netip.ParseAddrPort(a.HostPort())
		if ip := ap.Addr(); e == nil && !ip.IsUnspecified() && (err != nil || ip.Unmap().Is4() == to.Addr().Unmap().Is4()) {
			return net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))
		}
	}
	return nil
}
