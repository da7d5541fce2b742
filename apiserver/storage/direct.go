package storage

import "context"

// Direct returns a context whose watches have objects of their own, and tell by bookmarks how far
// they are: once when they have begun, and whenever RequestWatchProgress asks for it, with a
// revision that is not below any that was visible then. Who reads two resources can put them into
// one order by that.
func Direct(ctx context.Context) context.Context { return context.WithValue(ctx, directKey{}, true) }

type directKey struct{}

func isDirect(ctx context.Context) bool { return ctx.Value(directKey{}) != nil }
