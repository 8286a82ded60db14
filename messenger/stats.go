package messenger

import "time"

// Stats is a snapshot of a Messenger's counters since New, and its gauges.
type Stats struct {
	// Connections by state.
	Connecting, Open, Standby, HalfOpen int
	// ConnectionsCreated counts connections made or accepted and ready.
	ConnectionsCreated uint64
	// Faults counts transports of sessions that ended by a fault, and sessions
	// that could not be opened.
	Faults uint64
	// Attempts counts attempts of ours to connect, one per address, and one for each
	// that a name stands for; Reconnects
	// transports that went on with an old session, opened by either side.
	Attempts, Reconnects uint64
	// Replayed counts messages that were sent again, RemoteResets sessions that
	// peers have lost.
	Replayed, RemoteResets uint64
	// Retries and RetriesGlobal count SESSION_RETRY and SESSION_RETRY_GLOBAL
	// received, RacesLost WAIT.
	Retries, RetriesGlobal, RacesLost uint64
	// ResetsSent counts SESSION_RESET sent: peers that asked to go on with a session
	// that we do not have (any more), or with cookies that are not its.
	ResetsSent uint64
	// Fallbacks count that an address less good was tried, by why: nobody
	// listened, no answer in time, another failure; or, for each connection, that
	// the peer has an address by a better transport than any that exists here (rdma
	// before iwarp before tcp).
	FallbacksRefused, FallbacksTimeout, FallbacksOther, FallbacksNoTransport uint64
	// HandshakesFailed counts peers, accepted or dialed, that failed to become
	// a connection; HandshakesRefused those beyond MaxHalfOpen or, of which
	// HandshakesRefusedPerHost, beyond MaxHalfOpenPerHost. Of those that failed,
	// HandshakeTimeouts took too long.
	HandshakesFailed, HandshakesRefused         uint64
	HandshakesRefusedPerHost, HandshakeTimeouts uint64
	// ProtocolErrors counts peers that broke the protocol, or do not speak it.
	ProtocolErrors uint64
	// WrongPeers counts transports that were given up because who is there, or
	// whom the peer means, is somebody else.
	WrongPeers uint64
	// PolicyMismatches counts connections of which one side takes the session for
	// lossy and the other does not: it is lossy then.
	PolicyMismatches uint64
	// CallsRefused counts calls of peers that were not answered, and were told so.
	CallsRefused uint64
	// SessionsExpired counts those that Config.SessionTimeout has ended.
	SessionsExpired uint64
	// AuthFailures counts peers that were not who they said, or did not believe
	// us; wrong signatures among them.
	AuthFailures uint64
	// Secured counts connections in ModeSecure. ForgedRecords counts those that
	// ended because a record of theirs did not open.
	Secured, ForgedRecords uint64
	// BadGrants counts uses of grants, by peers, that are not live, or that
	// reached outside of them. Where our device is what refuses, that ends the
	// connection: iwarp tells of each that has, devices of the kernel may end one
	// without a reason that we get to see, so that it is a lower bound there (see
	// conn.ErrViolation).
	BadGrants uint64

	MessagesSent, MessagesReceived uint64
	// BytesSent and BytesReceived count front, middle and data.
	BytesSent, BytesReceived uint64
	// BytesEncrypted and BytesDecrypted are those of them that went over transports
	// in ModeSecure.
	BytesEncrypted, BytesDecrypted uint64
	// FastDispatched counts messages that FastDispatch consumed; Unhandled
	// those that no dispatcher consumed.
	FastDispatched, Unhandled uint64
	// Duplicates counts messages dropped because they had been received, Skipped
	// gaps in the numbers of what was.
	Duplicates, Skipped uint64
	// Dropped counts queued messages that turned out to be too large for the
	// transport, or whose payload could not be read.
	Dropped uint64
	// Undelivered is ConnStats.Undelivered of all connections, past ones included.
	Undelivered uint64
	// HandlerPanics counts panics of dispatchers, each of which ended its
	// connection.
	HandlerPanics uint64
	// ChecksumErrors counts frames with a wrong checksum.
	ChecksumErrors uint64
	// ThrottleWaits counts how often a peer had to wait for a throttle.
	ThrottleWaits uint64
	// DispatchBytes is what is taken of Config.DispatchBytes now.
	DispatchBytes int64
	// Undispatched and OldestUndispatched are those of ConnStats: the sum over the
	// connections that there are, the Loopback included, and the longest (Ceph:
	// get_dispatch_queue_len, get_dispatch_queue_max_age).
	Undispatched       int
	OldestUndispatched time.Duration
	// StrandOverflows counts strands that ran outside of the pool, because a
	// worker that had just finished was not yet back in it.
	StrandOverflows uint64
}

// ConnStats is a snapshot of one Connection.
type ConnStats struct {
	State     State
	Transport string // the scheme of the transport in use, "" for none
	// QueuedMessages and QueuedBytes wait to be sent; OldestQueued is how long
	// the first of them has.
	QueuedMessages int
	QueuedBytes    int64
	OldestQueued   time.Duration
	// UnackedMessages and UnackedBytes have been sent and are kept, with their
	// buffers, until the peer has acknowledged them (lossless sessions).
	UnackedMessages int
	UnackedBytes    int64
	// Reconnects counts transports after the first, RemoteResets how often the
	// peer has lost the session.
	Reconnects, RemoteResets uint64
	// Undispatched is how many received messages wait for Dispatch (or events for
	// the other methods of Dispatcher), OldestUndispatched for how long the first
	// message among them has.
	Undispatched       int
	OldestUndispatched time.Duration
	OutSeq, InSeq      uint64
	// Undelivered counts messages that Send or Call had taken and that were given
	// up: queued, or sent and not acknowledged, when the session was over
	// (MarkDown, a fault of a lossy one) or was lost by the peer, or too large for
	// the transport when it was there. A lossless session delivers all others. A
	// lossy one forgets what it has handed to its transport: how much of that has
	// arrived is not known.
	Undelivered uint64
	// LastReceived is when anything arrived, LastKeepalive when a keepalive of the
	// peer did; LastKeepaliveAck the time of the last keepalive that was answered,
	// by our clock when it was sent.
	LastReceived, LastKeepalive, LastKeepaliveAck time.Time
	// Grants is how many grants are live.
	Grants int
}

// Stats returns the messenger's counters.
func (m *Messenger) Stats() Stats {
	n := &m.n
	s := Stats{
		ConnectionsCreated: n.created.Load(), Faults: n.faults.Load(),
		HandshakesFailed: n.handshakesFailed.Load(), HandshakesRefused: n.handshakesRefused.Load(),
		MessagesSent: n.sent.Load(), MessagesReceived: n.received.Load(),
		BytesSent: n.bytesSent.Load(), BytesReceived: n.bytesReceived.Load(),
		BytesEncrypted: n.bytesSealed.Load(), BytesDecrypted: n.bytesOpened.Load(),
		FastDispatched: n.fast.Load(), Unhandled: n.unhandled.Load(), Duplicates: n.duplicates.Load(),
		HandlerPanics: n.panics.Load(), ChecksumErrors: n.checksumErrors.Load(),
		Secured: n.secure.Load(), ForgedRecords: n.forgedRecords.Load(), AuthFailures: n.authFailures.Load(),
		HandshakesRefusedPerHost: n.refusedPerHost.Load(), HandshakeTimeouts: n.handshakeTimeouts.Load(),
		ProtocolErrors: n.protocolErrors.Load(), WrongPeers: n.wrongPeers.Load(),
		CallsRefused: n.callsRefused.Load(), PolicyMismatches: n.policyMismatches.Load(), SessionsExpired: n.expired.Load(),
		BadGrants:     n.badGrants.Load(),
		ResetsSent:    n.resetsSent.Load(),
		ThrottleWaits: n.throttleWaits.Load(), DispatchBytes: m.dispatchB.held(),
		StrandOverflows: m.ex.overflows.Load(),
		Attempts:        n.attempts.Load(), Reconnects: n.reconnects.Load(), Replayed: n.replayed.Load(),
		RemoteResets: n.remoteResets.Load(), Retries: n.retries.Load(), RetriesGlobal: n.retriesGlobal.Load(),
		RacesLost: n.racesLost.Load(), Skipped: n.skipped.Load(), Dropped: n.dropped.Load(), Undelivered: n.givenUp.Load(),
		FallbacksRefused: n.fallbacks[fallbackRefused].Load(), FallbacksTimeout: n.fallbacks[fallbackTimeout].Load(),
		FallbacksOther: n.fallbacks[fallbackOther].Load(), FallbacksNoTransport: n.fallbacks[fallbackNoTransport].Load(),
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.HalfOpen = m.halfOpen.n
	s.Undispatched, s.OldestUndispatched = m.loop.undispatched()
	for c := range m.connections {
		n, oldest := c.undispatched()
		s.Undispatched += n
		s.OldestUndispatched = max(s.OldestUndispatched, oldest)
		switch c.State() {
		case StateConnecting:
			s.Connecting++
		case StateOpen:
			s.Open++
		case StateStandby:
			s.Standby++
		}
	}
	return s
}
