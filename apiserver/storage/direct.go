package storage

import "context"

// Direct returns a context whose watches read the store and not the watch cache. Such a watch tells
// by bookmarks how far it is: once when it has begun, and whenever RequestWatchProgress asks it to,
// with a revision that is not below any that was visible then. Who reads two resources can put them
// into one order by that; watches of two caches are each as late as they happen to be.
func Direct(ctx context.Context) context.Context { return context.WithValue(ctx, directKey{}, true) }

type directKey struct{}

func isDirect(ctx context.Context) bool { return ctx.Value(directKey{}) != nil }
