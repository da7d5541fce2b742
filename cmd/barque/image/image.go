// Package image is `barque image`: the container images of the node on this machine.
package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/kubelet/containerd"
	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/images"
)

// Command returns `barque image`.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "List, pull, import and remove the container images of this machine",
		Long: `List, pull, import and remove the container images of the node on this machine.

Each start of the node imports the tars in DATA-DIR/images. Their images are exempt from
garbage collection.`,
	}
	cmd.AddCommand(imageListCommand(), imagePullCommand(), imageImportCommand(), imageRemoveCommand())
	return cmd
}

// runtimeFlags select the container runtime.
type runtimeFlags struct {
	dataDir, endpoint string
}

func addRuntimeFlags(c *cobra.Command) *runtimeFlags {
	f := &runtimeFlags{}
	c.Flags().StringVar(&f.dataDir, "data-dir", command.DefaultDataDir, "data directory of the node")
	c.Flags().StringVar(&f.endpoint, "container-runtime-endpoint", "",
		"CRI socket of an existing containerd or CRI-O (default: the node's own containerd)")
	return f
}

func (f *runtimeFlags) socket() (string, error) {
	if f.endpoint != "" {
		return f.endpoint, nil
	}
	return containerd.Socket(f.dataDir)
}

// begun gives the error of an interrupted change its exit code: the runtime may have done a part.
func begun(c *cobra.Command, err error) error {
	if err == nil || c.Context().Err() == nil {
		return err
	}
	return &exitcode.Error{Code: exitcode.Unfinished,
		Err: fmt.Errorf("interrupted: %w; barque image ls shows what is there", err)}
}

// with calls do with a client of the runtime.
func (f *runtimeFlags) with(do func(runtime *cri.Client) error) error {
	socket, err := f.socket()
	if err != nil {
		return err
	}
	return images.WithRuntime(socket, do)
}

func imageListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "List the images", Args: command.NoArgs}
	f, format := addRuntimeFlags(cmd), command.OutputFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		return f.with(func(runtime *cri.Client) error {
			list, err := images.List(c.Context(), runtime)
			if err != nil {
				return err
			}
			return command.Print(c, *format, list, func(w io.Writer) error {
				fmt.Fprintln(w, "IMAGE\tID\tSIZE\tPINNED")
				for _, image := range list {
					for _, name := range image.Names {
						id := strings.TrimPrefix(image.ID, "sha256:")
						fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, id[:min(len(id), 12)], command.Size(image.Bytes),
							command.Yes(image.Pinned))
					}
				}
				return nil
			})
		})
	}
	return cmd
}

func imagePullCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pull IMAGE…", Short: "Pull images from their registries", Args: cobra.MinimumNArgs(1),
		Example: "  barque image pull registry.example.com/app:1.2",
	}
	f := addRuntimeFlags(cmd)
	cmd.RunE = func(c *cobra.Command, names []string) error {
		return f.with(func(runtime *cri.Client) error {
			for _, name := range names {
				full, err := images.Normalize(name)
				if err != nil {
					return command.Usage(c, fmt.Errorf("image %q: %w", name, err))
				}
				fmt.Fprintf(c.ErrOrStderr(), "pulling %s\n", full)
				ref, err := runtime.PullImage(c.Context(), full, nil, nil)
				if err != nil {
					return begun(c, fmt.Errorf("pull %s: %w", full, err))
				}
				fmt.Fprintln(c.OutOrStdout(), ref)
			}
			return nil
		})
	}
	return cmd
}

func imageImportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "import FILE…", Short: "Import the images of tar files; - is standard input", Args: cobra.MinimumNArgs(1),
		Long: `Import the images of tar files into the node's containerd. A file is the output of
'docker save', or an OCI layout, plain or compressed with gzip or zstd. - is standard input.`,
		Example: "  barque image import app.tar\n  docker save app:1.2 | barque image import -\n  barque image import --all-nodes app.tar",
	}
	cmd.Long += `

With --all-nodes the images go to every node of the cluster, through the API server. That needs the
administrator's kubeconfig, and nothing on this machine. Nodes that are not Ready, that take nothing
for a minute, or that run their pods through another containerd or CRI-O are reported, and the
other nodes have the images.`
	f := addRuntimeFlags(cmd)
	all := cmd.Flags().Bool("all-nodes", false, "import into all nodes of the cluster, through the API server")
	kubeconfig := command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, files []string) error {
		if *all {
			if c.Flags().Changed("data-dir") || c.Flags().Changed("container-runtime-endpoint") {
				return command.Usage(c,
					errors.New(
						"--all-nodes takes the images through the API server: give neither --data-dir nor --container-runtime-endpoint"))
			}
			return importOnAll(c, *kubeconfig, files)
		}
		socket, err := f.socket()
		if err != nil {
			return err
		}
		for _, file := range files {
			names, err := importFile(c.Context(), c.InOrStdin(), socket, file)
			if err != nil {
				return begun(c, fmt.Errorf("import %s: %w", file, err))
			}
			for _, name := range names {
				fmt.Fprintln(c.OutOrStdout(), name)
			}
		}
		return nil
	}
	return cmd
}

// importOnAll imports files into all nodes. One that fails on some nodes ends the command.
func importOnAll(c *cobra.Command, kubeconfig string, files []string) error {
	client, _, err := command.NewClient(kubeconfig)
	if err != nil {
		return err
	}
	for _, file := range files {
		open := func() (io.ReadCloser, error) { return os.Open(file) }
		if file == "-" {
			copied, err := copyOf(c.InOrStdin())
			if err != nil {
				return fmt.Errorf("copy the standard input: %w", err)
			}
			defer os.Remove(copied)
			open = func() (io.ReadCloser, error) { return os.Open(copied) }
		} else if _, err := os.Stat(file); err != nil {
			return err
		}
		if err := looksLikeArchive(open); err != nil {
			return fmt.Errorf("import %s: %w", file, err)
		}
		err := images.ImportOnAll(c.Context(), client.CoreV1(), open, images.Progress{
			Done: func(node string, names []string) {
				for _, name := range names {
					fmt.Fprintf(c.OutOrStdout(), "%s\t%s\n", node, name)
				}
			},
			Waiting: func(node string) { fmt.Fprintf(c.ErrOrStderr(), "waiting for node %s\n", node) },
		})
		if err != nil {
			return begun(c, fmt.Errorf("import %s:\n%w", file, err))
		}
	}
	return nil
}

// looksLikeArchive judges the beginning of what the nodes would get.
func looksLikeArchive(open func() (io.ReadCloser, error)) error {
	f, err := open()
	if err != nil {
		return err
	}
	defer f.Close()
	return images.LooksLikeArchive(f)
}

// copyOf writes what it reads into a temporary file, which each node gets from its begin.
func copyOf(in io.Reader) (name string, err error) {
	f, err := os.CreateTemp("", "barque-images-*.tar")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(f, in)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

func importFile(ctx context.Context, in io.Reader, socket, file string) ([]string, error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	return containerd.Import(ctx, socket, in)
}

func imageRemoveCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "rm IMAGE…", Aliases: []string{"remove"},
		Short: "Remove images; containers of them keep running", Args: cobra.MinimumNArgs(1)}
	f := addRuntimeFlags(cmd)
	cmd.RunE = func(c *cobra.Command, names []string) error {
		return f.with(func(runtime *cri.Client) error {
			for _, name := range names {
				if err := images.Remove(c.Context(), runtime, name); err != nil {
					return begun(c, err)
				}
			}
			return nil
		})
	}
	return cmd
}
