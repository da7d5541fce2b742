// Package fieldindex wakes a watch for the changes of those objects that have its value of a field.
//
// It owns the queues of such watches, and the values of a resource's objects. It decodes nothing:
// the storage reads a value for it. It decides nothing either: while a watch reads history it may
// return other changes, too, so that its reader checks each object.
package fieldindex
