package workshop

import (
	"context"
	"fmt"
	"path"

	"github.com/barque/barque/cluster-test/images"
)

// Debian is an image of Debian's packages.
func Debian(name string, f images.Foreign) Image {
	return Image{Name: name, Foreign: func(context.Context) (images.Foreign, error) { return f, nil }}
}

// Postgres is an image with Debian's PostgreSQL on the PATH: the server and its programs. It runs
// as the user postgres, whose number is given. f adds packages and configuration.
func Postgres(name string, user int, f images.Foreign) Image {
	return Image{Name: name, Foreign: func(ctx context.Context) (images.Foreign, error) {
		version, err := images.PostgresVersion(ctx)
		if err != nil {
			return images.Foreign{}, err
		}
		f := f // each call makes its own
		f.Shell = true
		f.Packages = append([]string{"postgresql-" + version, "postgresql-client-" + version}, f.Packages...)
		f.Users = append(f.Users, fmt.Sprintf("postgres:x:%d:%[1]d:PostgreSQL:/var/lib/postgresql:/bin/sh", user))
		f.Dirs = append(f.Dirs, "var/lib/postgresql", "run/postgresql", "var/run/postgresql")
		f.Config.User = fmt.Sprint(user)
		f.Links = map[string]string{}
		for _, program := range []string{
			"initdb", "pg_basebackup", "pg_checksums", "pg_controldata", "pg_ctl", "pg_dump", "pg_isready",
			"pg_receivewal", "pg_restore", "pg_rewind", "pg_upgrade", "postgres", "psql",
		} {
			f.Links[path.Join("usr/bin", program)] = "../lib/postgresql/" + version + "/bin/" + program
		}
		return f, nil
	}}
}
