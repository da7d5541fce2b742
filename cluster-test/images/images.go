package images

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// recipe is changed together with the way the images are made of the packages.
const recipe = "3"

// The images, as they are known to people.
const (
	Busybox  = "docker.io/library/busybox:1.36"
	Nginx    = "docker.io/library/nginx:1.21.6"
	NginxNew = "docker.io/library/nginx:1.22"
)

// Build returns the images by name, made now or at an earlier time.
func Build(ctx context.Context) (map[name.Tag]v1.Image, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("where to keep the test images: %w", err)
	}
	return build(ctx, filepath.Join(cache, "barque-test-images"))
}

func build(ctx context.Context, cache string) (map[name.Tag]v1.Image, error) {
	dir, err := basic.layers(ctx, cache)
	if err != nil {
		return nil, err
	}
	return assemble(dir)
}

// packageSet is Debian packages, and the layers that are made of their files.
type packageSet struct {
	packages []string                                                        // beside the libraries that they depend on
	trees    map[string]func(ctx context.Context, root string) (tree, error) // by file in the cache
}

// basic has the packages of the images of Build.
var basic = packageSet{
	packages: []string{"nginx", "nginx-common", "openssl", "busybox-static"},
	trees: map[string]func(context.Context, string) (tree, error){
		busyboxLayer: busyboxTree,
		nginxLayer:   nginxTree,
	},
}

// layers returns the directory with the set's layers, made now or at an earlier time.
func (s packageSet) layers(ctx context.Context, cache string) (dir string, err error) {
	tool, err := newApt()
	if err != nil {
		return "", err
	}
	names, err := tool.packages(ctx, s.packages)
	if err != nil {
		return "", fmt.Errorf("which Debian packages the test images need: %w", err)
	}
	packages, err := tool.resolve(ctx, names)
	if err != nil {
		return "", fmt.Errorf("find the Debian packages for the test images: %w", err)
	}
	dir = filepath.Join(cache, key(packages))
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		err = s.fill(ctx, tool, names, cache, dir)
		if err != nil {
			return "", fmt.Errorf("make the test images: %w", err)
		}
	} else if err != nil {
		return "", err
	}
	return dir, nil
}

func (a *apt) packages(ctx context.Context, wanted []string) ([]string, error) {
	var names []string
	_, err := a.refreshing(ctx, func() (_ string, err error) {
		names, err = a.closure(ctx, wanted...)
		return "", err
	})
	return names, err
}

// fill makes the layers in a directory beside and renames it, so that one that exists is whole.
func (s packageSet) fill(ctx context.Context, tool *apt, names []string, cache, dir string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	root, err := tool.unpack(ctx, names, work)
	if err != nil {
		return err
	}
	layers := filepath.Join(work, "layers")
	if err := os.Mkdir(layers, 0o755); err != nil {
		return err
	}
	for file, make := range s.trees {
		t, err := make(ctx, root)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		data, err := t.tar()
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if data, err = compress(data); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(layers, file), data, 0o644); err != nil {
			return err
		}
	}
	if err := os.Rename(layers, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Files of the cache.
const (
	busyboxLayer = "busybox.tar.gz"
	nginxLayer   = "nginx.tar.gz"
)

// busyboxTree is busybox with all its names, and the files that a shell expects.
func busyboxTree(ctx context.Context, root string) (tree, error) {
	t := tree{}
	if err := t.take(root,
		func(name string) bool { return name == "bin/busybox" || name == "usr/bin/busybox" }); err != nil {
		return nil, err
	}
	binary, ok := t["bin/busybox"]
	if !ok {
		binary = t["usr/bin/busybox"]
	}
	if len(binary.data) == 0 {
		return nil, errors.New("the package busybox-static brings no bin/busybox")
	}
	t = tree{"bin/busybox": binary}
	path := filepath.Join(root, "bin/busybox")
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join(root, "usr/bin/busybox")
	}
	applets, err := exec.CommandContext(ctx, path, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("ask busybox for its names: %w", err)
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			t.link("bin/"+applet, "busybox")
		}
	}
	t.file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
	t.file("etc/group", "root:x:0:\nnogroup:x:65534:\n")
	t.dir("tmp", 0o777|fs.ModeSticky)
	t.dir("root", 0o700)
	return t, nil
}

// nginxTree is nginx with its libraries and a configuration as people expect of a container; and
// openssl, for tests that speak TLS in a pod.
func nginxTree(_ context.Context, root string) (tree, error) {
	t := tree{}
	if err := t.take(root, func(name string) bool {
		return name == "usr/sbin/nginx" || name == "usr/bin/openssl" || name == "etc/nginx/mime.types" ||
			isLibrary(name)
	}); err != nil {
		return nil, err
	}
	for _, executable := range []string{"usr/sbin/nginx", "usr/bin/openssl"} {
		if err := t.checkLibraries(executable); err != nil {
			return nil, err
		}
	}
	t.file("etc/nginx/nginx.conf", `user root;
worker_processes 1;
error_log /dev/stderr notice;
pid /run/nginx.pid;
events { worker_connections 256; }
http {
    include /etc/nginx/mime.types;
    access_log /dev/stdout;
    server {
        listen 80;
        location / { root /usr/share/nginx/html; index index.html; }
    }
}
`)
	t.dir("var/lib/nginx", 0o755)
	t.dir("var/log/nginx", 0o755)
	t.dir("run", 0o755)
	return t, nil
}

func compress(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// assemble puts the images together from the cached layers.
func assemble(dir string) (map[name.Tag]v1.Image, error) {
	layer := func(file string) (v1.Layer, error) {
		return tarball.LayerFromFile(filepath.Join(dir, file))
	}
	shell, err := layer(busyboxLayer)
	if err != nil {
		return nil, err
	}
	server, err := layer(nginxLayer)
	if err != nil {
		return nil, err
	}
	out := map[name.Tag]v1.Image{}
	add := func(tag string, config v1.Config, layers ...v1.Layer) error {
		ref, err := name.NewTag(tag)
		if err != nil {
			return err
		}
		out[ref], err = image(config, layers...)
		return err
	}
	err = add(Busybox, v1.Config{Cmd: []string{"sh"}, Env: []string{searchPath}}, shell)
	for _, tag := range []string{Nginx, NginxNew} {
		_, version, _ := strings.Cut(tag, ":")
		page, pageErr := welcome(version)
		err = errors.Join(err, pageErr, add(tag, nginxConfig(version), shell, server, page))
	}
	return out, err
}

// searchPath is the PATH of every image.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func nginxConfig(version string) v1.Config {
	return v1.Config{
		Cmd:          []string{"nginx", "-g", "daemon off;"},
		Env:          []string{searchPath, "NGINX_VERSION=" + version},
		ExposedPorts: map[string]struct{}{"80/tcp": {}},
		StopSignal:   "SIGQUIT",
	}
}

// image puts an image for this machine's architecture together.
func image(config v1.Config, layers ...v1.Layer) (v1.Image, error) {
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.Architecture, file.OS, file.Config = runtime.GOARCH, "linux", config
	return mutate.ConfigFile(img, file)
}

// welcome is the layer in which the two tags of nginx differ: the page that they serve.
func welcome(version string) (v1.Layer, error) {
	t := tree{}
	t.file("usr/share/nginx/html/index.html",
		"<!DOCTYPE html>\n<title>Welcome to nginx!</title>\n<h1>Welcome to nginx!</h1>\n<p>Image nginx:"+version+
			"</p>\n")
	return t.layer()
}
