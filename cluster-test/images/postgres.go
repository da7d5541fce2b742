package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Postgres is PostgreSQL as Debian has it. Its user is postgres, 999, and PGDATA is where its data
// is to be.
const Postgres = "docker.io/library/postgres:debian"

const postgresLayer = "postgres.tar.gz"

// ForPostgres returns the image of PostgreSQL, made now or at an earlier time.
func ForPostgres(ctx context.Context) (map[name.Tag]v1.Image, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("where to keep the test images: %w", err)
	}
	version, err := PostgresVersion(ctx)
	if err != nil {
		return nil, err
	}
	set := packageSet{
		packages: []string{"postgresql-" + version, "postgresql-client-" + version, "busybox-static"},
		trees: map[string]func(context.Context, string) (tree, error){
			busyboxLayer:  busyboxTree,
			postgresLayer: func(_ context.Context, root string) (tree, error) { return postgresTree(root, version) },
		},
	}
	dir, err := set.layers(ctx, filepath.Join(cache, "barque-test-images"))
	if err != nil {
		return nil, err
	}
	var layers []v1.Layer
	for _, file := range []string{busyboxLayer, postgresLayer} {
		layer, err := tarball.LayerFromFile(filepath.Join(dir, file))
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	tag, err := name.NewTag(Postgres)
	if err != nil {
		return nil, err
	}
	img, err := image(v1.Config{
		User: "999:999", Env: []string{searchPath + ":/usr/lib/postgresql/" + version + "/bin", "PGDATA=/data/db"},
		StopSignal: "SIGINT",
	}, layers...)
	return map[name.Tag]v1.Image{tag: img}, err
}

// PostgresVersion is the major version of PostgreSQL in this release of Debian.
func PostgresVersion(ctx context.Context) (string, error) {
	tool, err := newApt()
	if err != nil {
		return "", err
	}
	out, err := tool.refreshing(ctx,
		func() (string, error) { return tool.run(ctx, "", "apt-cache", "depends", "postgresql") })
	if err != nil {
		return "", fmt.Errorf("which version of PostgreSQL this Debian has: %w", err)
	}
	for line := range strings.Lines(out) {
		if version, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: postgresql-"); ok {
			return version, nil
		}
	}
	return "", fmt.Errorf("the package postgresql depends on no server:\n%s", out)
}

// postgresTree is the server, psql and initdb with their libraries. The compiler of queries, which
// is larger than all of it, stays out.
func postgresTree(root, version string) (tree, error) {
	programs := "usr/lib/postgresql/" + version + "/bin/"
	t := tree{}
	if err := t.take(root, func(name string) bool {
		switch base := filepath.Base(name); {
		case strings.HasPrefix(base, "libLLVM"), strings.HasPrefix(base, "llvmjit"):
			return false
		case strings.HasPrefix(name, programs):
			return base == "postgres" || base == "initdb" || base == "psql" || base == "pg_ctl"
		}
		return isLibrary(name) ||
			strings.HasPrefix(name, "usr/share/postgresql/"+version+"/") && !strings.Contains(name, "/man/")
	}); err != nil {
		return nil, err
	}
	var errs error
	for _, program := range []string{"postgres", "initdb", "psql"} {
		errs = errors.Join(errs, t.checkLibraries(programs+program))
	}
	t.file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\npostgres:x:999:999:PostgreSQL:/tmp:/bin/sh\n")
	t.file("etc/group", "root:x:0:\npostgres:x:999:\n")
	t.dir("tmp", 0o777|fs.ModeSticky)
	return t, errs
}
