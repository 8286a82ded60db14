// Package fabric puts the layers of the library together for one process: a device, an arena and a messenger, opened in
// this order and closed in the other.
package fabric
