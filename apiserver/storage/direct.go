package storage

import "context"

// Direct returns a context whose watches have objects of their own, and report their progress by
// bookmarks: once when they have begun, and at each RequestWatchProgress, with a revision that is
// not below any that was visible then. A reader of two resources can put their events into one
// order by that.
func Direct(ctx context.Context) context.Context { return context.WithValue(ctx, directKey{}, true) }

type directKey struct{}

func isDirect(ctx context.Context) bool { return ctx.Value(directKey{}) != nil }
