package verbs

import "context"

// Listener hands out connection requests.
type Listener struct{}

// Addr is "host:port", with the port that was bound.
func (l *Listener) Addr() string { return "" }

// Accept waits for the next request. It ends with ErrClosed by Close, or with
// ctx's error.
func (l *Listener) Accept(ctx context.Context) (*ConnRequest, error) { return nil, ErrNotSupported }

// Close stops listening and refuses the requests not yet accepted. Requests
// handed out live on.
func (l *Listener) Close() error { return ErrNotSupported }

// ConnRequest is a peer that asks for a connection. Exactly one call of Accept
// or Reject ends it.
type ConnRequest struct{}

// Param is what the peer sent: private data (the request's own), and its IRD
// and ORD as ours have to be at least and at most.
func (r *ConnRequest) Param() ConnParam { return ConnParam{} }

// PrivateData is Param().PrivateData.
func (r *ConnRequest) PrivateData() []byte { return nil }

// LocalAddr is our address, "host:port".
func (r *ConnRequest) LocalAddr() string { return "" }

// RemoteAddr is the peer's address, "host:port".
func (r *ConnRequest) RemoteAddr() string { return "" }

// Accept connects qp, made for this request, with receives posted. On error qp
// is in ERR and can only be closed.
func (r *ConnRequest) Accept(ctx context.Context, qp *QP, p ConnParam) error { return ErrNotSupported }

// Reject refuses the request; the peer gets private, at most
// Caps.MaxPrivateData bytes.
func (r *ConnRequest) Reject(private []byte) error { return ErrNotSupported }
