package messenger

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// Messenger is one entity's end of all its sessions. All methods are safe for
// concurrent use.
type Messenger struct {
	cfg       Config // with defaults
	log       *slog.Logger
	owner     buffer.Owner
	offered   uint64
	limits    msgr2.Limits
	ex        *executor
	inject    *injector // nil for none
	dispatchB *throttle
	loop      *Connection
	endpoints map[string]*conn.Endpoint
	// interfaces is net.InterfaceAddrs; tests look at who calls it.
	interfaces func() ([]net.Addr, error)
	n          counters
	mark       handlerMark
	// Pools of what has channels. They are the messenger's, since a test with
	// virtual time has channels of its own.
	callPool, sendWaiters sync.Pool
	wg                    sync.WaitGroup // every goroutine but the executor's
	lat                   *latencies     // nil: not measured
	held                  [heldShards]heldShard
	undescribe            []func()      // see describeTo; of New and forgetHeld
	stop                  chan struct{} // closed when the ticker is to end
	servedOne             chan struct{} // capacity 1: a call has been served
	binding               gate          // of Bind and Rebind

	globalSeq, globalID atomic.Uint64
	lastConn            atomic.Uint32 // the youngest Connection's id
	epoch, nonce        atomic.Uint32
	chain               atomic.Pointer[[]Dispatcher]
	closing             atomic.Bool
	discarding          atomic.Bool // no handler begins any more: Shutdown does not wait
	draining            atomic.Bool // see Drain
	started             time.Time
	gapLogged           atomic.Int64 // when a gap was last logged, by clock
	refusalLogged       atomic.Int64 // when a refused handshake was
	ticked              atomic.Int64 // when the ticker has run, nanoseconds after started

	mu          sync.Mutex
	policies    map[EntityType]Policy
	fallback    *Policy
	perType     map[throttleKey]throttles
	bound       AddrVec       // as the transports say
	told        AddrVec       // bound, with what has been learned; replaced as a whole
	wire        msgr2.AddrVec // told
	learned     [2]netip.Addr // of IPv4 and IPv6, where peers have reached us; see learn
	asked       AddrVec       // what Bind was called with
	listening   []listening
	links       map[*link]struct{}
	ending      map[*link]struct{} // have ended, and not all that was granted on them, see settle
	halfOpen    halfOpen
	connections map[*Connection]struct{}
	peers       map[peerKey]*Connection // by each address that is known
	reached     map[peerKey]reached     // by the place, without nonce
	shut        chan struct{}           // closed when Shutdown has ended
	shutting    *deadline               // of the Shutdown under way, or that has ended
	unfinished  error                   // what it has not ended; for who waits for shut
	drains      *deadline               // of the Drains that wait, see Resume
}

// throttleKey is whose throttles they are: those of all peers of a type, under
// policies with the same bounds. Sessions keep the policy that they have.
type throttleKey struct {
	t               EntityType
	messages, bytes int64
}

// counters are Stats' while they count.
type counters struct {
	created, faults, handshakesFailed, handshakesRefused atomic.Uint64
	sent, received, bytesSent, bytesReceived             atomic.Uint64
	bytesSealed, bytesOpened                             atomic.Uint64
	fast, unhandled, duplicates, panics, throttleWaits   atomic.Uint64
	attempts, reconnects, replayed, remoteResets         atomic.Uint64
	retries, retriesGlobal, racesLost, skipped           atomic.Uint64
	dropped, givenUp                                     atomic.Uint64
	fallbacks                                            [fallbackReasons]atomic.Uint64
	checksumErrors, secure, forgedRecords, authFailures  atomic.Uint64
	refusedPerHost, handshakeTimeouts, badGrants         atomic.Uint64
	resetsSent                                           atomic.Uint64
	protocolErrors, wrongPeers, callsRefused             atomic.Uint64
	policyMismatches, expired                            atomic.Uint64
}

// Defaults of Config.
const (
	defaultDispatchBytes  = 100 << 20
	defaultConnectTimeout = 10 * time.Second
	defaultBackoffMin     = 200 * time.Millisecond
	defaultBackoffMax     = 15 * time.Second
	defaultIdleTimeout    = 15 * time.Minute
	defaultKeepalive      = 10 * time.Second
	defaultBindRetryDelay = 5 * time.Second
	defaultMaxHalfOpen    = 256
	minHalfOpenPerHost    = 16
	minWorkers            = 8
	maxWorkers            = 4096
	maxFrontLimit         = 64 << 20
)

func (c Config) withDefaults() (Config, error) {
	bad := func(format string, args ...any) (Config, error) {
		return c, fmt.Errorf("%w: Config.%s", ErrInvalid, fmt.Sprintf(format, args...))
	}
	if c.Name.Type == 0 {
		return bad("Name is not set")
	}
	if c.Arena == nil {
		return bad("Arena is not set")
	}
	if c.Workers < 0 || c.Workers > maxWorkers {
		return bad("Workers = %d, not 1 to %d", c.Workers, maxWorkers)
	}
	if c.MaxFront < 0 || c.MaxFront > maxFrontLimit {
		return bad("MaxFront = %d, not 1 to %d", c.MaxFront, maxFrontLimit)
	}
	if c.MaxData < 0 || c.MaxData > 1<<32-1 {
		return bad("MaxData = %d, not 1 to 4 GiB - 1", c.MaxData)
	}
	for i, t := range c.Transports {
		switch {
		case t.Scheme != SchemeIWARP && t.Scheme != SchemeRDMA:
			return bad("Transports has scheme %q: only %s and %s have addresses that travel (tcp needs no entry)", t.Scheme, SchemeIWARP, SchemeRDMA)
		case t.Open == nil:
			return bad("Transports: Open of %s is not set", t.Scheme)
		case slices.ContainsFunc(c.Transports[:i], func(o Transport) bool { return o.Scheme == t.Scheme }):
			return bad("Transports has %s twice: a scheme is one endpoint; a second device goes by the other scheme", t.Scheme)
		}
	}
	set := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Workers == 0 {
		c.Workers = max(minWorkers, 2*runtime.GOMAXPROCS(0))
	}
	if c.DispatchBytes == 0 {
		c.DispatchBytes = defaultDispatchBytes
	}
	if c.MaxHalfOpen <= 0 {
		c.MaxHalfOpen = defaultMaxHalfOpen
	}
	if c.MaxHalfOpenPerHost <= 0 {
		c.MaxHalfOpenPerHost = max(c.MaxHalfOpen/4, minHalfOpenPerHost)
	}
	set(&c.ConnectTimeout, defaultConnectTimeout)
	set(&c.BackoffMin, defaultBackoffMin)
	set(&c.BackoffMax, defaultBackoffMax)
	set(&c.IdleTimeout, defaultIdleTimeout)
	set(&c.KeepaliveInterval, defaultKeepalive)
	set(&c.KeepaliveTimeout, 3*c.KeepaliveInterval)
	if len(c.Auth) == 0 {
		c.Auth = []Auth{AuthNone{}}
	}
	if len(c.Modes) == 0 {
		c.Modes = []Mode{ModeCRC}
	}
	for _, mode := range c.Modes {
		if mode != ModeCRC && mode != ModeSecure {
			return bad("Modes has %v, which is not built", mode)
		}
	}
	if !slices.ContainsFunc(c.Auth, func(a Auth) bool { return len(modesOf(a, c.Modes)) > 0 }) {
		return bad("Modes = %v: no method of Auth has keys for that", c.Modes)
	}
	if c.Nonce == 0 && c.Name.Type != Mon {
		c.Nonce = uint32(random64()) | 1
	}
	set(&c.BindRetryDelay, defaultBindRetryDelay)
	if p := c.BindPorts; p != (PortRange{}) && (p.First == 0 || p.Last < p.First) {
		return bad("BindPorts = %d to %d", p.First, p.Last)
	}
	if c.BindBeforeConnect && c.DialStream != nil {
		return bad("BindBeforeConnect is for the dialer that DialStream replaces")
	}
	return c, c.checkSockets()
}

func random64() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// New makes a messenger and opens its transports. Add dispatchers and set
// policies before Bind or ConnectTo. The caller ends it with Shutdown or Close.
// Errors: ErrInvalid, and those of Transport.Open.
func New(cfg Config) (*Messenger, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ex, err := newExecutor(cfg.Workers)
	if err != nil {
		return nil, err
	}
	m := &Messenger{
		cfg: cfg, log: cfg.Logger, owner: cfg.Arena.Owner("messenger", 0), offered: offered(&cfg),
		limits: msgr2.Limits{Front: uint32(cfg.MaxFront), Middle: uint32(cfg.MaxFront), Data: uint32(cfg.MaxData)}.WithDefaults(),
		ex:     ex, inject: newInjector(cfg.Inject), dispatchB: newThrottle(cfg.DispatchBytes),
		endpoints: map[string]*conn.Endpoint{}, interfaces: net.InterfaceAddrs, stop: make(chan struct{}), servedOne: make(chan struct{}, 1), binding: make(gate, 1),
		policies: map[EntityType]Policy{}, perType: map[throttleKey]throttles{},
		links: map[*link]struct{}{}, ending: map[*link]struct{}{}, connections: map[*Connection]struct{}{}, peers: map[peerKey]*Connection{}, reached: map[peerKey]reached{},
		shut: make(chan struct{}), mark: newHandlerMark(), started: time.Now(),
	}
	if most := cfg.Arena.Stats(); cfg.MaxData == 0 {
		m.limits.Data = uint32(min(int64(m.limits.Data), most.Budget-most.Reserve))
	}
	if cfg.Latencies {
		m.lat = &latencies{base: time.Now()}
	}
	if m.cfg.DialStream == nil {
		m.cfg.DialStream = m.dialTCP
	}
	if m.cfg.ListenStream == nil {
		m.cfg.ListenStream = m.listenTCP
	}
	m.callPool.New, m.sendWaiters.New = newCall, newSendWaiter
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	} else {
		m.log = m.log.With("entity", cfg.Name.String())
	}
	m.epoch.Store(uint32(random64()))
	m.nonce.Store(cfg.Nonce)
	// Later incarnations of an entity whose nonce is always the same, as a
	// monitor's, go on from where the earlier ones have stopped.
	m.globalSeq.Store(uint64(time.Now().UnixMilli()))
	m.chain.Store(new([]Dispatcher))
	m.loop = m.newConnection(cfg.Name.Type, LosslessPeer())
	m.loop.loop, m.loop.peer, m.loop.session.State = true, cfg.Name, session.Open
	for _, t := range cfg.Transports {
		ep, err := t.Open(m.connConfig(t.Scheme))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("messenger: transport %s: %w", t.Scheme, err), m.Close())
		}
		m.endpoints[t.Scheme] = ep
		if ep.Arena() != cfg.Arena {
			return nil, errors.Join(fmt.Errorf("%w: transport %s has another arena than Config.Arena", ErrInvalid, t.Scheme), m.Close())
		}
	}
	m.describeTo(cfg.Arena)
	for _, ep := range m.endpoints {
		if a := ep.Sinks(); a != cfg.Arena {
			m.describeTo(a)
		}
	}
	for scheme, ep := range m.endpoints {
		m.wg.Add(1)
		go m.watch(scheme, ep) // ends with m.stop
	}
	m.ticked.Store(int64(time.Since(m.started)))
	m.wg.Add(1)
	go m.tick() // ends with m.stop
	return m, nil
}

// Name is Config.Name.
func (m *Messenger) Name() EntityName { return m.cfg.Name }

// SetPolicy sets the policy towards peers of type t. It holds for connections that
// are made afterwards: a lossless session that exists keeps its own, throttles
// included, whichever side connects again (Policy.Secure alone is that of the
// moment). Without one, the policy is that of SetDefaultPolicy, at first
// StatelessServer for peers that connect and LossyClient for others.
func (m *Messenger) SetPolicy(t EntityType, p Policy) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.policies[t] = p
}

// SetDefaultPolicy sets the policy towards peers of all types without one.
func (m *Messenger) SetDefaultPolicy(p Policy) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fallback = &p
}

// policyFor is the policy of new connections with peers of type t. m.mu is held.
func (m *Messenger) policyFor(t EntityType, incoming bool) Policy {
	p, ok := m.policies[t]
	switch {
	case ok:
	case m.fallback != nil:
		p = *m.fallback
	case incoming:
		p = StatelessServer()
	default:
		p = LossyClient()
	}
	return p
}

// throttlesFor returns the throttles of peers of type t under policy p, which all
// connections under it share.
func (m *Messenger) throttlesFor(t EntityType, p Policy) throttles {
	k := throttleKey{t, p.MaxMessages, p.MaxBytes}
	m.mu.Lock()
	defer m.mu.Unlock()
	tt, ok := m.perType[k]
	if !ok {
		tt = throttles{messages: newThrottle(k.messages), bytes: newThrottle(k.bytes), dispatch: m.dispatchB}
		m.perType[k] = tt
	}
	return tt
}

// AddDispatcher adds d at the end of the chain (Ceph: add_dispatcher_tail). What is
// being dispatched goes by the chain as it was.
func (m *Messenger) AddDispatcher(d Dispatcher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	chain := append(slices.Clone(m.dispatchers()), d)
	m.chain.Store(&chain)
}

// AddDispatcherFront adds d at the front of the chain, before all that have been
// added (Ceph: add_dispatcher_head): it is the first to be asked for each message,
// and to be told of each event. What is being dispatched goes by the chain as it was.
func (m *Messenger) AddDispatcherFront(d Dispatcher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	chain := append([]Dispatcher{d}, m.dispatchers()...)
	m.chain.Store(&chain)
}

func (m *Messenger) dispatchers() []Dispatcher { return *m.chain.Load() }

// Arena is Config.Arena.
func (m *Messenger) Arena() *buffer.Arena { return m.cfg.Arena }

// Endpoints is the endpoints that Config.Transports has made, by scheme, for
// their Stats.
func (m *Messenger) Endpoints() map[string]*conn.Endpoint { return maps.Clone(m.endpoints) }

// Loopback is the connection to ourselves: what is sent there is dispatched
// here, without a transport. It is always open.
func (m *Messenger) Loopback() *Connection { return m.loop }

// Addrs is the addresses bound, with the ports and the nonce they got. Where the
// host is unspecified (0.0.0.0, ::) it is the one that the first peer has reached
// us at, if there was any yet: as a peer that we have connected to has seen it, else
// where we were connected to. One on loopback gives way to any other. A peer that
// reaches us by another interface is told that address, and this one.
// With the nonce they are this incarnation's: see ConnectTo.
func (m *Messenger) Addrs() AddrVec {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.told)
}

func (m *Messenger) wireAddrs() msgr2.AddrVec {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wire
}

func (m *Messenger) cookie() uint64 { return random64() | 1 }

func (m *Messenger) nextEpoch() uint32 { return m.epoch.Add(1) }

// isUs reports whether a peer that means to reach target reaches us.
func (m *Messenger) isUs(target msgr2.Addr) bool {
	if target.Nonce != 0 && target.Nonce != m.nonce.Load() {
		return false
	}
	ap := target.AddrPort()
	m.mu.Lock()
	bound := m.bound
	m.mu.Unlock()
	for _, a := range bound {
		wire := a.toWire()
		ours := wire.AddrPort()
		if ours.Port() == ap.Port() && (ours.Addr() == ap.Addr() || ours.Addr().IsUnspecified()) {
			return true
		}
	}
	return false
}

// MarkDownAll marks every connection down.
func (m *Messenger) MarkDownAll() {
	m.mu.Lock()
	all := make([]*Connection, 0, len(m.connections))
	for c := range m.connections {
		all = append(all, c)
	}
	m.mu.Unlock()
	for _, c := range all {
		c.MarkDown()
	}
}

// admitLink counts an incoming link. false: it is one too many, or we are
// closing.
func (m *Messenger) admitLink(l *link) bool {
	err := m.tryAdmit(l)
	if err == nil {
		return true
	}
	m.n.handshakesRefused.Add(1)
	if !errors.Is(err, ErrClosed) && m.mayLog(&m.refusalLogged) {
		l.note(slog.LevelInfo, "handshake refused", "err", err, "refused", m.n.handshakesRefused.Load())
	}
	return false
}

// tryAdmit is admitLink's work, or says why it did not do it. Errors: ErrClosed,
// ErrBusy.
func (m *Messenger) tryAdmit(l *link) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.incoming {
		if m.closing.Load() { // what is to be flushed may still connect
			return errShutDown
		}
		if err := m.halfOpen.take(m, l); err != nil {
			return err
		}
	}
	m.links[l] = struct{}{}
	return nil
}

// opened notes that a link's handshake has ended well.
func (m *Messenger) opened(l *link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.learn(l.hs.end())
	if l.incoming {
		m.halfOpen.give(l)
	}
}

// forget takes a link out, which has ended; granted: grants of it have not.
func (m *Messenger) forget(l *link, granted bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.links[l]; !ok {
		return
	}
	delete(m.links, l)
	if granted {
		m.ending[l] = struct{}{}
	}
	m.unreach(l)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.incoming && !l.isOpen {
		m.halfOpen.give(l)
	}
}

// closed takes a connection out, which has ended.
func (m *Messenger) closed(c *Connection) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.connections, c)
	m.unregister(c)
}
