// Package inspect shows what a messenger does, as JSON over HTTP.
package inspect
