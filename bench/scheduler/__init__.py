"""The scheduler's echo server, beside a bare epoll server and tokio."""
