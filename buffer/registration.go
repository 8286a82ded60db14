package buffer

import "github.com/argonaut-rdma/argonaut/verbs"

// RegCache keeps registrations of memory that the caller owns, for reuse. It is
// not built yet: Register returns ErrNotSupported.
type RegCache struct{}

// Register returns a handle for mem, registered with the rights acc. It is not
// built yet and returns ErrNotSupported.
func (c *RegCache) Register(mem []byte, acc verbs.Access) (*Registration, error) {
	return nil, ErrNotSupported
}

// Registration is the caller's own memory, registered.
type Registration struct{}

// List returns the memory as a list. Not built yet: the list is empty.
func (r *Registration) List() *List { return new(List) }

// Close gives the registration up. Not built yet.
func (r *Registration) Close() error { return ErrNotSupported }
