package messenger

import "fmt"

// Policy is how sessions with peers of one type behave. The constructors give
// Ceph's seven by name; throttles and features are added to them.
type Policy struct {
	// Lossy: when the transport fails, the session is over (HandleReset).
	// Otherwise what was sent is kept until the peer has it, the session is
	// resumed on another transport, and every message arrives once and in order,
	// unless one side drops the session. A session is lossy if one side is.
	Lossy bool
	// Server: never connects to the peer on its own account.
	Server bool
	// Standby: with nothing to send, wait for the peer instead of reconnecting.
	Standby bool
	// ResetCheck: notice, and report, that the peer has lost the session.
	ResetCheck bool
	// RegisterLossyClients: a lossy client that connects again replaces its
	// earlier connection.
	RegisterLossyClients bool

	// Secure: towards peers of the type there is no mode but ModeSecure, whatever
	// Config.Modes says.
	Secure bool

	// MaxMessages and MaxBytes bound what has been received from all peers of
	// the type together and not been released: messages, and bytes of front,
	// middle and data. They are taken before payload is fetched; a peer beyond
	// them waits. 0: no bound but Config.DispatchBytes.
	MaxMessages int64
	MaxBytes    int64

	// QueueMessages and QueueBytes bound what is queued to be sent on one
	// connection and, where the session is lossless, what has been sent and is
	// not acknowledged: Send waits at them, TrySend fails. Default 1024 messages
	// and 64 MiB; negative: no bound.
	QueueMessages int
	QueueBytes    int64

	// Supported is added to the features that the messenger offers peers of the
	// type, Required to those that it asks of them: Ceph's feature bits, which
	// also say how payloads are encoded.
	Supported, Required uint64
}

// LossyClient is a client, or a heartbeat: nothing survives the transport.
func LossyClient() Policy { return Policy{Lossy: true} }

// LosslessClient is the client of a stateful server.
func LosslessClient() Policy { return Policy{ResetCheck: true} }

// LosslessPeer is one of two equals that keep a session alive, as OSDs among
// themselves.
func LosslessPeer() Policy { return Policy{Standby: true} }

// LosslessPeerReuse is a LosslessPeer that notices a lost session.
func LosslessPeerReuse() Policy { return Policy{Standby: true, ResetCheck: true} }

// StatefulServer keeps the session of a client that is away.
func StatefulServer() Policy { return Policy{Server: true, Standby: true, ResetCheck: true} }

// StatelessServer forgets a client with its transport.
func StatelessServer() Policy { return Policy{Lossy: true, Server: true} }

// StatelessRegisteredServer is a StatelessServer where a client that connects
// again replaces its earlier connection.
func StatelessRegisteredServer() Policy {
	return Policy{Lossy: true, Server: true, RegisterLossyClients: true}
}

// String is Ceph's name of the policy, or its rules where it has none.
func (p Policy) String() string {
	for _, n := range [...]struct {
		name string
		p    Policy
	}{
		{"lossy_client", LossyClient()}, {"lossless_client", LosslessClient()},
		{"lossless_peer", LosslessPeer()}, {"lossless_peer_reuse", LosslessPeerReuse()},
		{"stateful_server", StatefulServer()}, {"stateless_server", StatelessServer()},
		{"stateless_registered_server", StatelessRegisteredServer()},
	} {
		if n.p.rules() == p.rules() {
			return n.name
		}
	}
	return fmt.Sprintf("lossy=%v server=%v standby=%v resetcheck=%v register_lossy_clients=%v",
		p.Lossy, p.Server, p.Standby, p.ResetCheck, p.RegisterLossyClients)
}

const (
	defaultQueueMessages = 1024
	defaultQueueBytes    = 64 << 20
)

func (p Policy) withDefaults() Policy {
	if p.QueueMessages == 0 {
		p.QueueMessages = defaultQueueMessages
	}
	if p.QueueBytes == 0 {
		p.QueueBytes = defaultQueueBytes
	}
	return p
}
