// Package store keeps objects on a local disk so that what was acknowledged survives a crash and what was not leaves
// nothing behind.
//
// An object is a blob file and a record in the index (bbolt). A blob is written under a name of its own that nothing
// refers to, synced, and only then named by the record, in one index transaction: that transaction is the moment the
// object comes into being, or the moment the old one is replaced. A blob that no record names is what a crash left; Open
// removes it, unless the index itself is gone. A blob file that is being read stays readable through the descriptor that the reader opened, whatever
// becomes of the object.
//
// Data is divided into chunks of ChunkSize bytes, each with a CRC32C that is checked on every read. The checksums lie in
// table pages between the data (layout.go), so that neither reader nor writer holds more than one page of them, however
// large the object is.
//
// Data moves directly between the files and the slices that the caller passes; the package keeps no buffer of payload.
//
// A Store is safe for concurrent use; a Writer and an Object are for one goroutine at a time. No goroutines are started.
//
// Errors are *Error, whose kind is one of ErrNotFound, ErrBadKey, ErrNoSpace, ErrDamaged, ErrUnreadable, ErrChecksum,
// ErrSize, ErrRange, ErrInUse, ErrFormat, ErrNoIndex, ErrIndex and ErrClosed, for errors.Is.
package store
