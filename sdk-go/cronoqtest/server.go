// Package cronoqtest starts cronoq servers for tests: in memory, on a clock that the test moves.
package cronoqtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// What a test server is: a process with a clock of its own, and how it is found, moved and ended.

const (
	serving = "serving gRPC on "
	// saidMax is how much of what a server says is kept for the error of a failed start.
	saidMax = 8 * 1024
)

// Options say how a test server is started. The zero value is the default of each.
type Options struct {
	// Command is the program; CRONOQ_SERVER of the environment or cronoq-server when empty.
	Command string
	// Args are more arguments, such as --config and a path.
	Args []string
}

// Server is a server in memory whose time stands still until it is moved.
type Server struct {
	endpoint string
	command  *exec.Cmd
	conn     *grpc.ClientConn
	clock    pb.TestingClient
	ended    chan struct{}
	stop     sync.Once
	err      error
}

// Start starts a server on a free port of this machine and returns when it serves. It fails when the
// server cannot be started, ends before it serves, or when the context ends.
func Start(ctx context.Context, options Options) (*Server, error) {
	path := options.Command
	if path == "" {
		path = os.Getenv("CRONOQ_SERVER")
	}
	if path == "" {
		path = "cronoq-server"
	}
	arguments := []string{
		"--test-clock", "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0",
	}
	command := exec.Command(path, append(arguments, options.Args...)...)
	for _, each := range os.Environ() {
		if !strings.HasPrefix(each, "CRONOQ_SERVER=") { // The server would take it for a setting.
			command.Env = append(command.Env, each)
		}
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cronoqtest: %w", err)
	}
	command.Stdout, command.Stderr = write, write
	err = command.Start()
	write.Close()
	if err != nil {
		read.Close()
		return nil, fmt.Errorf("cronoqtest: %w", err)
	}
	made := &Server{command: command, ended: make(chan struct{})}
	found := make(chan string, 1)
	go made.follow(read, found)
	return made.connected(ctx, found)
}

// follow reads what the server says to its end: first where it serves, or why it does not.
func (s *Server) follow(from io.ReadCloser, found chan<- string) {
	defer close(s.ended)
	defer from.Close()
	defer close(found)
	var said strings.Builder
	isFound := false
	for lines := bufio.NewScanner(from); lines.Scan(); {
		line := lines.Text()
		if place, hasPlace := strings.CutPrefix(line, serving); hasPlace && !isFound {
			isFound = true
			found <- strings.TrimSpace(place)
		}
		if !isFound && said.Len() < saidMax {
			said.WriteString(line + "\n")
		}
	}
	err := s.command.Wait()
	if !isFound {
		s.err = fmt.Errorf("cronoqtest: the server ended before it served: %w\n%s", err, said.String())
	}
}

func (s *Server) connected(ctx context.Context, found <-chan string) (*Server, error) {
	select {
	case place, isServing := <-found:
		if !isServing {
			<-s.ended
			return nil, s.err
		}
		s.endpoint = place
	case <-ctx.Done():
		s.Stop()
		return nil, fmt.Errorf("cronoqtest: the server does not serve yet: %w", ctx.Err())
	}
	conn, err := grpc.NewClient(
		s.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
	)
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("cronoqtest: %w", err)
	}
	s.conn, s.clock = conn, pb.NewTestingClient(conn)
	return s, nil
}

// Endpoint is where it listens, for clients and workers.
func (s *Server) Endpoint() string { return s.endpoint }

// Advance moves its clock forward.
func (s *Server) Advance(ctx context.Context, by time.Duration) error {
	if by < 0 {
		return errors.New("cronoqtest: time goes forward only")
	}
	_, err := s.clock.Advance(ctx, &pb.AdvanceRequest{Seconds: by.Seconds()})
	return err
}

// Settle returns when everything that is due has been done.
func (s *Server) Settle(ctx context.Context) error {
	_, err := s.clock.Settle(ctx, &pb.Empty{})
	return err
}

// Stop ends the server and returns when it is gone. It may be called again.
func (s *Server) Stop() {
	s.stop.Do(func() {
		if s.conn != nil {
			s.conn.Close()
		}
		if s.command.Process.Signal(syscall.SIGTERM) != nil {
			return // It has ended already.
		}
		<-s.ended
	})
}
