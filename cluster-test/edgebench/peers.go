package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/cluster-test/program"
)

// peer is a proxy of other authors.
type peer struct {
	name string
	// port is where it serves HTTPS, on the address of the node.
	port int
	// prepare makes the program, or finds it.
	prepare func(ctx context.Context, o options) (installed, error)
	// configure writes the configuration with routes for hosts.
	configure func(s *site, p *peer, hosts []string) error
	// command starts it.
	command func(s *site, in installed) *exec.Cmd
	// reload lets a running one read its configuration again.
	reload func(ctx context.Context, s *site, p *program.Program) error
}

// installed is a program with the libraries that it needs.
type installed struct{ path, libraries string }

func (i installed) command(args ...string) *exec.Cmd {
	cmd := exec.Command(i.path, args...)
	if i.libraries != "" {
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+i.libraries)
	}
	return cmd
}

var peers = []*peer{
	{name: "nginx", port: 8441, prepare: debian("nginx", "usr/sbin/nginx"), configure: configureNginx,
		command: func(s *site, in installed) *exec.Cmd {
			return in.command("-c", s.file("nginx.conf"), "-p", s.work, "-e", s.file("nginx.errors"))
		},
		reload: func(_ context.Context, _ *site, p *program.Program) error { return p.Signal(syscall.SIGHUP) },
	},
	{name: "HAProxy", port: 8442, prepare: debian("haproxy", "usr/sbin/haproxy"), configure: configureHAProxy,
		command: func(s *site, in installed) *exec.Cmd {
			return in.command("-W", "-f", s.file("haproxy.cfg"))
		},
		reload: func(_ context.Context, _ *site, p *program.Program) error { return p.Signal(syscall.SIGUSR2) },
	},
	{name: "Caddy", port: 8443, prepare: buildCaddy, configure: configureCaddy,
		command: func(s *site, in installed) *exec.Cmd {
			cmd := in.command("run", "--config", s.file("caddy.json"))
			cmd.Env = append(os.Environ(), "HOME="+s.work, "XDG_DATA_HOME="+s.work, "XDG_CONFIG_HOME="+s.work)
			return cmd
		},
		reload: reloadCaddy,
	},
}

// debian finds a program in a package of Debian, unpacked and not installed.
func debian(name, path string) func(context.Context, options) (installed, error) {
	return func(ctx context.Context, _ options) (installed, error) {
		root, err := images.Unpacked(ctx, name)
		if err != nil {
			return installed{}, err
		}
		var libraries []string
		for _, dir := range []string{"lib", "usr/lib"} {
			found, err := filepath.Glob(filepath.Join(root, dir, "*-linux-gnu"))
			if err != nil {
				return installed{}, err
			}
			libraries = append(libraries, found...)
		}
		return installed{filepath.Join(root, path), strings.Join(libraries, ":")}, nil
	}
}

// caddyModule is where Caddy's version is, in the root of Barque's source.
const caddyModule = "cluster-test/edgebench/caddy"

func buildCaddy(ctx context.Context, o options) (installed, error) {
	path, err := filepath.Abs(filepath.Join(o.bin, "caddy"))
	if err != nil {
		return installed{}, err
	}
	if _, err := os.Stat(path); err == nil {
		return installed{path: path}, nil
	}
	progress("building Caddy; this takes some minutes, once")
	cmd := exec.CommandContext(ctx, kubeapiserver.Go(), "build", "-ldflags", "-s -w", "-o", path, ".")
	cmd.Dir = caddyModule
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-trimpath -buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return installed{}, fmt.Errorf("build it in %s: %w: %s", caddyModule, err, out)
	}
	return installed{path: path}, nil
}

// The configurations do what Barque's gateway does without being asked: they name the client to the
// backend, keep connections on both sides, and write no access log.

func configureNginx(s *site, p *peer, hosts []string) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, `user root;
worker_processes %d;
daemon off;
pid %s;
events { worker_connections 8192; }
http {
	access_log off;
	client_body_temp_path %[3]s/nginx-body;
	proxy_temp_path %[3]s/nginx-proxy;
	fastcgi_temp_path %[3]s/nginx-fastcgi;
	uwsgi_temp_path %[3]s/nginx-uwsgi;
	scgi_temp_path %[3]s/nginx-scgi;
	keepalive_timeout 120s;
	keepalive_requests 1000000000;
	server_names_hash_max_size 65536;
	server_names_hash_bucket_size 128;
	ssl_certificate %[4]s;
	ssl_certificate_key %[5]s;
	ssl_protocols TLSv1.2 TLSv1.3;
	upstream backend {
		server %[6]s;
		keepalive 512;
		keepalive_requests 1000000000;
	}
	proxy_http_version 1.1;
	proxy_set_header Connection "";
	proxy_set_header Host $host;
	proxy_set_header X-Real-IP $remote_addr;
	proxy_set_header X-Forwarded-For $remote_addr;
	proxy_set_header X-Forwarded-Proto $scheme;
	proxy_set_header X-Forwarded-Host $host;
	proxy_set_header X-Forwarded-Port $server_port;
	server {
		listen %[7]s ssl http2 default_server backlog=4096;
		return 404;
	}
`, workers, s.file("nginx.pid"), s.work, s.chain(), s.key(), s.backend, s.at(p.port))
	for _, h := range hosts {
		fmt.Fprintf(&b, "\tserver { listen %s ssl http2; server_name %s; location / { proxy_pass http://backend; } }\n",
			s.at(p.port), h)
	}
	b.WriteString("}\n")
	return s.write("nginx.conf", b.Bytes())
}

func configureHAProxy(s *site, p *peer, hosts []string) error {
	both := append(s.read(s.chain()), s.read(s.key())...)
	var routes bytes.Buffer
	for _, h := range hosts {
		fmt.Fprintf(&routes, "%s backend\n", h)
	}
	return errors.Join(s.write("haproxy.pem", both), s.write("haproxy.map", routes.Bytes()),
		s.write("haproxy.cfg", fmt.Appendf(nil, `global
	nbthread %d
	maxconn 8192
	ssl-default-bind-options ssl-min-ver TLSv1.2
	log /dev/null local0
defaults
	mode http
	timeout connect 5s
	timeout client 120s
	timeout server 60s
	timeout http-request 10s
	option forwardfor
	http-reuse always
frontend edge
	bind %s ssl crt %s alpn h2,http/1.1
	http-request set-header X-Forwarded-Proto https
	http-request set-header X-Forwarded-Host %%[req.hdr(host)]
	use_backend %%[req.hdr(host),lower,map_str(%s,none)]
backend backend
	server one %s
backend none
	http-request return status 404
`, workers, s.at(p.port), s.file("haproxy.pem"), s.file("haproxy.map"), s.backend)))
}

// caddyAdmin is the port of Caddy's API.
const caddyAdmin = 8444

func configureCaddy(s *site, p *peer, hosts []string) error {
	type object map[string]any
	var routes []object
	for _, h := range hosts {
		routes = append(routes, object{
			"match": []object{{"host": []string{h}}}, "terminal": true,
			"handle": []object{{
				"handler": "reverse_proxy", "upstreams": []object{{"dial": s.backend}},
				"transport": object{"protocol": "http", "keep_alive": object{"enabled": true,
					"max_idle_conns_per_host": 512}},
			}},
		})
	}
	config := object{
		"admin":   object{"listen": s.at(caddyAdmin), "config": object{"persist": false}},
		"logging": object{"logs": object{"default": object{"level": "ERROR"}}},
		"apps": object{
			"http": object{"servers": object{"edge": object{
				"listen": []string{s.at(p.port)}, "routes": routes, "protocols": []string{"h1", "h2"},
				"automatic_https": object{"disable": true}, "tls_connection_policies": []object{{}},
			}}},
			"tls": object{"certificates": object{"load_files": []object{{"certificate": s.chain(), "key": s.key()}}}},
		},
	}
	data, err := json.Marshal(config)
	if err != nil {
		return err
	}
	return s.write("caddy.json", data)
}

// reloadCaddy loads the configuration by the API, which answers when it is in use.
func reloadCaddy(ctx context.Context, s *site, _ *program.Program) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.at(caddyAdmin)+"/load",
		bytes.NewReader(s.read(s.file("caddy.json"))))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API of Caddy answers %s", response.Status)
	}
	return nil
}
