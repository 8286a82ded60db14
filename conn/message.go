package conn

import "github.com/argonaut-rdma/argonaut/buffer"

// Message is what Send takes and OnMessage gets.
type Message struct {
	// Head is small: at most Conn.MaxHead bytes. It is copied by Send, and
	// borrowed by OnMessage until that returns.
	Head []byte
	// Payload is a list of registered buffers: of the endpoint's arena, of
	// Config.Exposed, of another arena or a buffer.RegCache (memory of the
	// caller) that is attached to Endpoint.PD. nil for none. Send takes the
	// reference; OnMessage is given one, of buffers of the endpoint's.
	Payload *buffer.List
	// Sent, if not nil, is called once after a Send that has taken Payload: when
	// the device needs its memory no more, because the requests that name it have
	// completed, or because the connection is gone. It is for who lends memory
	// that others may change. It runs with locks of the Conn held: it must not
	// block, nor call a method of the Conn. OnMessage gets nil.
	Sent func()
}

// Grant lets the peer of one connection read or write one range of our memory,
// until it is revoked or the connection ends. Its fields may travel in messages;
// a grant that the peer made up, or changed, reaches no memory that was not
// granted to this connection.
type Grant struct {
	Addr  uint64 // of the first byte, as the granting device counts
	RKey  uint32 // remote key
	Len   uint64 // bytes
	Write bool   // the peer may write; else it may read
	Epoch uint32 // of the connection that it holds for
	Once  bool   // one Read or Write ends it: see Conn.GrantOnce
}
