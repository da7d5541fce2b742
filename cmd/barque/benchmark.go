package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/barque/barque/adminapi/hardening"
	"github.com/barque/barque/adminapi/remote/evidence"
	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/clusterstatus/cis"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/internal/filelock"
	"github.com/barque/barque/internal/procstat"
	"github.com/barque/barque/internal/terminal"
	"github.com/barque/barque/membership/enroll"
)

// benchmarkFlags are those of `barque check --profile`.
type benchmarkFlags struct {
	command.Asker
	profile string
	local   *string // data directory of the node on this machine
}

func addBenchmarkFlags(c *cobra.Command, dataDir *string) *benchmarkFlags {
	b := &benchmarkFlags{local: dataDir}
	flags := c.Flags()
	flags.StringVar(&b.profile, "profile", "", "judge a running cluster by this benchmark: cis")
	flags.StringVar(&b.Kubeconfig, "kubeconfig", "", "with --profile: "+command.KubeconfigHelp)
	flags.StringSliceVar(&b.Servers, "server", nil,
		"with --profile: address of a server to ask instead of the kubeconfig's, HOST[:6443]; may be repeated")
	flags.DurationVar(&b.Timeout, "timeout", 5*time.Second, "with --profile: how long a server is waited for")
	return b
}

// run judges the cluster, and prints the rows.
func (b *benchmarkFlags) run(c *cobra.Command, args []string, format string) error {
	b.DataDir = *b.local
	if b.profile != options.ProfileCIS || len(args) > 0 {
		return command.Usage(c, fmt.Errorf("--profile %q: want cis, and no machines", b.profile))
	}
	if err := b.Check(c); err != nil {
		return err
	}
	e, err := b.evidence(c.Context())
	if err != nil {
		return err
	}
	report := cis.Judge(e, serverHas())
	if err := command.Print(c, format, report, report.Write); err != nil {
		return err
	}
	if n := report.Failed(); n > 0 {
		return errors.New(terminal.Plural(n, "row fails", "rows fail") + " or could not be judged")
	}
	return nil
}

// evidence asks the cluster. On an agent's machine without a kubeconfig it is that machine's files.
func (b *benchmarkFlags) evidence(ctx context.Context) (*cis.Evidence, error) {
	agent, err := b.agent()
	if err != nil {
		return nil, err
	}
	if _, err := b.Config(); err != nil {
		if agent == nil {
			return nil, err
		}
		return &cis.Evidence{Machine: agent}, nil
	}
	heard, err := b.Ask(ctx)
	if err != nil {
		return nil, err
	}
	var servers []evidence.Server
	for _, m := range heard.Status().Servers() {
		servers = append(servers, evidence.Server{Name: m.Name, Hosts: heard.Hosts(m), Address: m.API})
	}
	config := heard.Config
	if answering := slices.Sorted(maps.Values(heard.At)); len(answering) > 0 {
		config = heard.To(answering[0]) // for objects, which are the same at all servers
	}
	e, err := evidence.Collect(ctx, config, servers)
	if err != nil {
		return nil, err
	}
	e.Machine = agent
	e.Defaults = &cis.Defaults{
		ClusterRoles: rbac.DefaultClusterRoles(), ClusterRoleBindings: rbac.DefaultClusterRoleBindings(),
		Roles: rbac.DefaultRoles(), RoleBindings: rbac.DefaultRoleBindings(),
	}
	return e, nil
}

// agent is the machine of the agent whose data directory is here; nil without one, and for callers
// who may not read it.
func (b *benchmarkFlags) agent() (*cis.Machine, error) {
	r, err := enroll.Load(*b.local)
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil || r == nil || r.Role != roleAgent {
		return nil, err
	}
	dir, err := filepath.Abs(*b.local)
	if err != nil {
		return nil, err
	}
	o := options.Options{DataDir: dir, Network: options.OwnNetwork}
	files, unknown := runningKubelet(dir)
	o.KubeletFiles = files
	place := o.Place()
	place.KubeletUnknown = unknown
	m := hardening.Examine(r.Name, place)
	return &m, nil
}

// runningKubelet returns the files and directories of the kubelet's configuration, by the arguments
// of the agent that runs with a data directory.
func runningKubelet(dataDir string) ([]string, error) {
	pid, _, runs := filelock.Holder(enroll.LockFile(dataDir))
	if !runs {
		return nil,
			fmt.Errorf("no agent is seen to run with %s, so its --kubelet-config is not known: start it", dataDir)
	}
	words, err := procstat.Args(pid)
	if err != nil {
		return nil, fmt.Errorf("the arguments of the running agent: %w", err)
	}
	files, err := kubeletFilesIn(words)
	if err != nil {
		return nil, fmt.Errorf("the arguments of process %d, so --kubelet-config is not known: %w", pid, err)
	}
	home, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "cwd"))
	if err != nil {
		return nil, fmt.Errorf("the directory of the running agent: %w", err)
	}
	for i, file := range files {
		if !filepath.IsAbs(file) {
			files[i] = filepath.Join(home, file)
		}
	}
	return files, nil
}

// kubeletFilesIn returns the files and directories of the kubelet's configuration by the words of
// an agent's command.
func kubeletFilesIn(words []string) (files []string, err error) {
	if len(words) < 2 || words[1] != roleAgent {
		return nil, errors.New("they are not those of `barque agent`")
	}
	c := agentCommand()
	c.FParseErrWhitelist.UnknownFlags = true // of another version
	if err := c.ParseFlags(words[2:]); err != nil {
		return nil, err
	}
	for _, name := range []string{"kubelet-config", "kubelet-config-dir"} {
		if path := c.Flags().Lookup(name).Value.String(); path != "" {
			files = append(files, path)
		}
	}
	return files, nil
}

// serverHas tells whether `barque server` has a flag.
func serverHas() func(name string) bool {
	flags := serverCommand().Flags()
	return func(name string) bool { return flags.Lookup(name) != nil }
}

// secretFlags have values that no report may show.
var secretFlags = []string{"token"}

// effective are the values of all flags.
func effective(flags *pflag.FlagSet) map[string]string {
	values := map[string]string{}
	flags.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(secretFlags, f.Name) {
			values[f.Name] = f.Value.String()
		}
	})
	return values
}
