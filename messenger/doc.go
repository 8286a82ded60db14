// Package messenger is a storage cluster's messenger: named entities, sessions
// between them under per-type policies, dispatchers, throttles, calls, and
// one-sided access to granted memory. On a byte stream it speaks Ceph's msgr
// v2.1, on RDMA the same frames as messages; see PROTOCOL.md.
//
//	m, err := messenger.New(messenger.Config{Name: messenger.EntityName{Type: messenger.OSD, Num: 0}, Arena: arena, ...})
//	m.AddDispatcher(d)
//	err = m.Bind(ctx, addrs)               // a server
//	c, err := m.ConnectTo(messenger.OSD, addrs) // a client
//	reply, err := c.Call(ctx, msg)
//	err = m.Shutdown(ctx)
//
// # Ownership
//
// Messages are reference counted. Send and Call *take* a message: on a nil error
// the reference moves to the messenger, on an error the caller keeps it. A
// handler that consumes a message owns a reference and releases it. Payload is
// a buffer.List that the message owns; it is never copied: what RDMA or the
// socket read into is what the handler gets, and what the handler sends is what
// the adapter or the socket reads. Throttles are held by a received message
// until its last Release: a handler that keeps messages slows its peers down.
package messenger
